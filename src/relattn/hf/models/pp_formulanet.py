"""PP-FormulaNet's image encoder, which is SAM's."""

from __future__ import annotations

from transformers.models.pp_formulanet.modeling_pp_formulanet import PPFormulaNetVisionAttention

from relattn.hf.models.decomposed import SamAttention


class RelattnPPFormulaNetVisionAttention(SamAttention, PPFormulaNetVisionAttention):
    """PPFormulaNetVisionAttention on relattn."""


REPLACEMENTS = {PPFormulaNetVisionAttention: RelattnPPFormulaNetVisionAttention}
"""The module of transformers, and its replacement."""
