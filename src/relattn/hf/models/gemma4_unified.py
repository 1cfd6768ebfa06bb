"""Gemma 4's unified models: as Gemma 4."""

from __future__ import annotations

from transformers.models.gemma4_unified.modeling_gemma4_unified import Gemma4UnifiedTextModel

from relattn.hf.models.gemma4 import LastTokens, where_it_slices_masks


class RelattnGemma4UnifiedTextModel(LastTokens, Gemma4UnifiedTextModel):
    """Gemma4UnifiedTextModel on relattn."""


REPLACEMENTS = where_it_slices_masks(Gemma4UnifiedTextModel, RelattnGemma4UnifiedTextModel)
"""The module of transformers, and its replacement."""
