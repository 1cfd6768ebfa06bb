"""DeepSeek-OCR2's first image encoder, which is SAM's."""

from __future__ import annotations

from transformers.models.deepseek_ocr2.modeling_deepseek_ocr2 import (
    DeepseekOcr2SamVisionAttention,
    DeepseekOcr2SamVisionSdpaAttention,
)

from relattn.hf.models.decomposed import SamAttention, SamSdpaAttention


class RelattnDeepseekOcr2SamVisionAttention(SamAttention, DeepseekOcr2SamVisionAttention):
    """DeepseekOcr2SamVisionAttention on relattn."""


class RelattnDeepseekOcr2SamVisionSdpaAttention(SamSdpaAttention, DeepseekOcr2SamVisionSdpaAttention):
    """DeepseekOcr2SamVisionSdpaAttention on relattn."""


REPLACEMENTS = {
    DeepseekOcr2SamVisionAttention: RelattnDeepseekOcr2SamVisionAttention,
    DeepseekOcr2SamVisionSdpaAttention: RelattnDeepseekOcr2SamVisionSdpaAttention,
}
"""The modules of transformers, and their replacements."""
