"""SAM, SAM-HQ, ViTDet, SegGPT, GOT-OCR2's encoder of images: S = scale q . k + q . RY[dy] + q . RX[dx]."""

from __future__ import annotations

from typing import Any

import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn
from transformers.models.got_ocr2.modeling_got_ocr2 import GotOcr2VisionAttention
from transformers.models.sam.modeling_sam import SamVisionAttention, SamVisionSdpaAttention
from transformers.models.sam_hq.modeling_sam_hq import SamHQVisionAttention, SamHQVisionSdpaAttention
from transformers.models.seggpt.modeling_seggpt import SegGptAttention
from transformers.models.vitdet.modeling_vitdet import VitDetAttention

from relattn.equation.tables import OffsetTable
from relattn.equation.terms import ScoreTerms
from relattn.hf.grids import on_grid
from relattn.hf.interface import attend
from relattn.hf.masks import MaskStructure
from relattn.hf.output_recording import is_recording
from relattn.hf.replacement import Replacement


class SamAttention(Replacement):
    """The attention of SAM's image encoder, which other models copied. Windows are images of the batch."""

    by_name = False
    drops_weights = True
    """Whether the original has dropout in its attention: its class for scaled_dot_product_attention has none."""

    def forward(
        self: Any, hidden_states: Float[Tensor, "B height width C"], output_attentions: bool | None = None
    ) -> tuple[Float[Tensor, "B height width C"], Float[Tensor, "BH L L"] | None]:
        """(output, attention weights if wanted), under SamVisionAttention's arguments."""
        dropout = self.dropout if self.drops_weights and self.training else 0.0
        with_weights = is_recording() if output_attentions is None else output_attentions
        heads, relative = self.num_attention_heads, self.use_rel_pos
        output, weights = _attend(self, hidden_states, heads, relative, dropout, with_weights)
        return output, None if weights is None else weights.flatten(0, 1)


class SamSdpaAttention(SamAttention):
    """The same without dropout. It can return weights, which the original cannot."""

    drops_weights = False


class RelattnSamVisionAttention(SamAttention, SamVisionAttention):
    """SamVisionAttention on relattn."""


class RelattnSamVisionSdpaAttention(SamSdpaAttention, SamVisionSdpaAttention):
    """SamVisionSdpaAttention on relattn."""


class RelattnSamHQVisionAttention(SamAttention, SamHQVisionAttention):
    """SamHQVisionAttention on relattn."""


class RelattnSamHQVisionSdpaAttention(SamSdpaAttention, SamHQVisionSdpaAttention):
    """SamHQVisionSdpaAttention on relattn."""


class RelattnGotOcr2VisionAttention(SamAttention, GotOcr2VisionAttention):
    """GotOcr2VisionAttention on relattn."""


class RelattnVitDetAttention(Replacement, VitDetAttention):
    """VitDetAttention on relattn."""

    by_name = False

    def forward(
        self, hidden_state: Float[Tensor, "B height width C"], output_attentions: bool = False
    ) -> tuple[Tensor] | tuple[Tensor, Tensor | None]:
        """(output,), or (output, attention weights) if wanted, under VitDetAttention's arguments."""
        relative = self.use_relative_position_embeddings
        output, weights = _attend(self, hidden_state, self.num_heads, relative, 0.0, output_attentions)
        return (output, weights) if output_attentions else (output,)


class RelattnSegGptAttention(Replacement, SegGptAttention):
    """SegGptAttention on relattn."""

    by_name = False

    def forward(
        self, hidden_states: Float[Tensor, "B height width C"], output_attentions: bool = False
    ) -> tuple[Tensor, Tensor | None]:
        """(output, attention weights if wanted), under SegGptAttention's arguments."""
        relative = self.use_relative_position_embeddings
        return _attend(self, hidden_states, self.num_attention_heads, relative, 0.0, output_attentions)


def _attend(
    module: Any,
    features: Float[Tensor, "B height width C"],
    num_heads: int,
    relative: bool,
    dropout: float,
    with_weights: bool,
) -> tuple[Float[Tensor, "B height width C"], Float[Tensor, "B H L L"] | None]:
    """Project, attend on the grid, project; relative: whether the module has rel_pos_h and rel_pos_w."""
    height, width = features.shape[1:3]
    projected = module.qkv(features).flatten(1, 2).unflatten(-1, (3, num_heads, -1))
    query, key, value = projected.permute(2, 0, 3, 1, 4).unbind()
    terms, structure = None, MaskStructure()
    if relative:
        y, x = (
            ScoreTerms(relative_keys=OffsetTable(_rows(rows, size) / module.scale, 1 - size, "error")).on(axis)
            for axis, rows, size in (("y", module.rel_pos_h, height), ("x", module.rel_pos_w, width))
        )
        terms, structure = y + x, on_grid(structure, (height, width))
    output, weights = attend(module, query, key, value, structure, terms, module.scale, dropout, with_weights)
    return module.proj(output.flatten(2).unflatten(1, (height, width))), weights


def _rows(rows: nn.Parameter, size: int) -> Float[Tensor, "1 offsets D"]:
    """One row per offset of `size` places, ascending, from a table that starts with the future, resized."""
    resized: Tensor = rows
    if rows.shape[0] != 2 * size - 1:
        resized = F.interpolate(rows.t().unsqueeze(0), size=2 * size - 1, mode="linear")[0].t()
    return resized.flip(0).unsqueeze(0)


REPLACEMENTS = {
    SamVisionAttention: RelattnSamVisionAttention,
    SamVisionSdpaAttention: RelattnSamVisionSdpaAttention,
    SamHQVisionAttention: RelattnSamHQVisionAttention,
    SamHQVisionSdpaAttention: RelattnSamHQVisionSdpaAttention,
    GotOcr2VisionAttention: RelattnGotOcr2VisionAttention,
    VitDetAttention: RelattnVitDetAttention,
    SegGptAttention: RelattnSegGptAttention,
}
"""The modules of transformers, and their replacements."""
