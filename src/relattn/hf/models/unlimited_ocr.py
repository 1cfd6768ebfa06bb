"""Unlimited-OCR's first image encoder, which is SAM's."""

from __future__ import annotations

from transformers.models.unlimited_ocr.modeling_unlimited_ocr import (
    UnlimitedOcrSamVisionAttention,
    UnlimitedOcrSamVisionSdpaAttention,
)

from relattn.hf.models.decomposed import SamAttention, SamSdpaAttention


class RelattnUnlimitedOcrSamVisionAttention(SamAttention, UnlimitedOcrSamVisionAttention):
    """UnlimitedOcrSamVisionAttention on relattn."""


class RelattnUnlimitedOcrSamVisionSdpaAttention(SamSdpaAttention, UnlimitedOcrSamVisionSdpaAttention):
    """UnlimitedOcrSamVisionSdpaAttention on relattn."""


REPLACEMENTS = {
    UnlimitedOcrSamVisionAttention: RelattnUnlimitedOcrSamVisionAttention,
    UnlimitedOcrSamVisionSdpaAttention: RelattnUnlimitedOcrSamVisionSdpaAttention,
}
"""The modules of transformers, and their replacements."""
