"""SLANeXt's image encoder, which is SAM's."""

from __future__ import annotations

from transformers.models.slanext.modeling_slanext import SLANeXtVisionAttention

from relattn.hf.models.decomposed import SamAttention


class RelattnSLANeXtVisionAttention(SamAttention, SLANeXtVisionAttention):
    """SLANeXtVisionAttention on relattn."""


REPLACEMENTS = {SLANeXtVisionAttention: RelattnSLANeXtVisionAttention}
"""The module of transformers, and its replacement."""
