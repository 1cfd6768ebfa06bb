"""Swin's copies in Donut, MaskFormer and CLAP: S = q . k / sqrt(D) + b[dy, dx] in windows."""

from __future__ import annotations

from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor
from transformers.models.clap.modeling_clap import ClapAudioLayer, ClapAudioSelfAttention
from transformers.models.donut.modeling_donut_swin import DonutSwinLayer, DonutSwinSelfAttention
from transformers.models.maskformer.modeling_maskformer_swin import MaskFormerSwinLayer, MaskFormerSwinSelfAttention

from relattn.hf.grids import grid_terms, on_grid
from relattn.hf.heads import projected
from relattn.hf.interface import attend
from relattn.hf.masks import MaskStructure
from relattn.hf.replacement import Replacement


class WindowLayer(Replacement):
    """A layer that hands its attention the regions of a shifted window's tokens instead of a mask of pairs."""

    by_name = False

    def get_attn_mask(
        self: Any, height: int, width: int, dtype: torch.dtype, device: torch.device | None = None
    ) -> MaskStructure | Tensor | None:
        """The region of each token of each window, [windows, n]; attention stays in one. None where nothing shifts."""
        if not isinstance(getattr(self.attention, "self", self.attention), Replacement):
            return super().get_attn_mask(height, width, **_given(dtype, device))  # pyright: ignore[reportAttributeAccessIssue]
        return _regions(height, width, self.window_size, self.shift_size, device)


class RelattnDonutSwinLayer(WindowLayer, DonutSwinLayer):
    """DonutSwinLayer for attention on relattn."""


class RelattnClapAudioLayer(WindowLayer, ClapAudioLayer):
    """ClapAudioLayer for attention on relattn."""


class RelattnMaskFormerSwinLayer(Replacement, MaskFormerSwinLayer):
    """MaskFormerSwinLayer for attention on relattn."""

    by_name = False

    def get_attn_mask(
        self,
        input_resolution: tuple[int, int],
        device: torch.device | None = None,
        dtype: torch.dtype | None = None,
    ) -> MaskStructure | Tensor | None:
        """As `WindowLayer.get_attn_mask`."""
        if not isinstance(self.attention.self, Replacement):
            return super().get_attn_mask(input_resolution, **_given(dtype, device))
        return _regions(*input_resolution, self.window_size, self.shift_size, device)


class WindowAttention(Replacement):
    """Attention in windows of `window_size`, each an element of the batch; windows of one image are neighbours."""

    by_name = False
    times_masked = 1
    """The number of times that the original adds the mask of pairs."""

    def forward(
        self: Any,
        hidden_states: Float[Tensor, "B L width"],
        attention_mask: MaskStructure | Tensor | None = None,
        output_attentions: bool | None = False,
    ) -> tuple[Tensor] | tuple[Tensor, Tensor | None]:
        """(output, attention weights if wanted), under the original's arguments."""
        query, key, value = projected(hidden_states, (self.query, self.key, self.value), self.attention_head_size)
        query, key, scale = self.compared(query, key)
        if isinstance(attention_mask, Tensor):
            attention_mask = attention_mask * self.times_masked
        height, width = self.window_size
        terms = grid_terms(self.bias_table(), (height, width))
        structure = of_windows(attention_mask, (height, width), query)
        dropout = self.dropout.p if self.training else 0.0
        output, weights = attend(self, query, key, value, structure, terms, scale, dropout, bool(output_attentions))
        return (output.flatten(2), weights) if output_attentions else (output.flatten(2),)

    def compared(self: Any, query: Tensor, key: Tensor) -> tuple[Tensor, Tensor, float]:
        """q, k and the scale of their product."""
        return query, key, self.attention_head_size**-0.5

    def bias_table(self: Any) -> Float[Tensor, "rows H"]:
        """The biases of all offsets, in the order of `GridBias.bias`."""
        return self.relative_position_bias_table


class RelattnDonutSwinSelfAttention(WindowAttention, DonutSwinSelfAttention):
    """DonutSwinSelfAttention on relattn."""


class RelattnMaskFormerSwinSelfAttention(WindowAttention, MaskFormerSwinSelfAttention):
    """MaskFormerSwinSelfAttention on relattn."""


class RelattnClapAudioSelfAttention(WindowAttention, ClapAudioSelfAttention):
    """ClapAudioSelfAttention on relattn."""


def of_windows(
    mask: MaskStructure | Tensor | None, sizes: tuple[int, int], query: Float[Tensor, "B H L D"]
) -> MaskStructure:
    """The mask of one image's windows, [windows, n, n], or their regions [windows, n], for all images of a batch."""
    structure = MaskStructure()
    if isinstance(mask, Tensor):
        pairs = mask.repeat(query.shape[0] // mask.shape[0], 1, 1).unsqueeze(1)
        structure = MaskStructure(attn_mask=pairs)
    elif mask is not None and isinstance(mask.segment_ids, Tensor):
        ids = mask.segment_ids
        structure = MaskStructure(segment_ids=ids.repeat(query.shape[0] // ids.shape[0], 1))
    return on_grid(structure, sizes)


def _given(dtype: torch.dtype | None, device: torch.device | None) -> dict[str, Any]:
    """What the original's caller gives, and so takes: in transformers 5.4 and 5.10 the dtype alone, or neither."""
    return {name: value for name, value in (("dtype", dtype), ("device", device)) if value is not None}


def _regions(height: int, width: int, window: int, shift: int, device: torch.device | None) -> MaskStructure | None:
    """The regions of the image after a cyclic shift: three parts on each axis, so nine regions."""
    if shift <= 0:
        return None
    y, x = (_part(size, window, shift, device) for size in (height, width))
    windows = (3 * y.unsqueeze(1) + x).unflatten(1, (-1, window)).unflatten(0, (-1, window)).transpose(1, 2)
    return MaskStructure(segment_ids=windows.flatten(2).flatten(0, 1))


def _part(size: int, window: int, shift: int, device: torch.device | None) -> Tensor:
    """0 before the last window, then 1, and 2 for the part that came around from the other side."""
    place = torch.arange(size, device=device)
    return (place >= size - window).long() + (place >= size - shift).long()


REPLACEMENTS = {
    DonutSwinLayer: RelattnDonutSwinLayer,
    DonutSwinSelfAttention: RelattnDonutSwinSelfAttention,
    MaskFormerSwinLayer: RelattnMaskFormerSwinLayer,
    MaskFormerSwinSelfAttention: RelattnMaskFormerSwinSelfAttention,
    ClapAudioLayer: RelattnClapAudioLayer,
    ClapAudioSelfAttention: RelattnClapAudioSelfAttention,
}
"""The module of transformers, and its replacement."""
