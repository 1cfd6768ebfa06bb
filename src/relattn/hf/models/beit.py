"""BEiT and Data2Vec-Vision: S = q . k / sqrt(D) + b[dy, dx], with separate rows for the class token."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor
from transformers.models.beit.modeling_beit import BeitAttention, BeitRelativePositionBias
from transformers.models.data2vec.modeling_data2vec_vision import (
    Data2VecVisionRelativePositionBias,
    Data2VecVisionSdpaSelfAttention,
    Data2VecVisionSelfAttention,
)

from relattn.errors import UnsupportedError
from relattn.hf.grids import grid_terms, on_grid
from relattn.hf.heads import projected
from relattn.hf.interface import add_to_scores, asks_for_weights, attend
from relattn.hf.masks import MaskStructure, as_structure
from relattn.hf.replacement import Replacement

CLASS_ROWS = 3
"""Rows after those of the grid, for pairs with the class token."""


@dataclass(frozen=True)
class GridMask:
    """The terms added to the scores: a table over a grid after a class token, and a mask; biases of two tables add up.

    table [rows + 3, H], as `GridBias.bias` with extra=3; None for none.
    """

    table: Float[Tensor, "rows H"] | None
    sizes: tuple[int, int]
    structure: MaskStructure

    @classmethod
    def __torch_function__(cls, function: Callable, *_: object) -> None:
        """Refuse attention that was not patched with the rest of its model.

        Raises UnsupportedError: always.
        """
        raise UnsupportedError(
            f"attention_mask: {function.__name__} got a bias without pairs from a patched module; patch the whole model"
        )

    def __add__(self, other: GridMask | MaskStructure | Tensor) -> GridMask:
        """Both, as a layer adds its own bias to the mask that it was given."""
        if not isinstance(other, GridMask):
            other = GridMask(None, self.sizes, as_structure(other, False, 0))
        pairs, structure = self.structure.attn_mask, other.structure
        structure = structure if pairs is None else add_to_scores(structure, pairs)
        if self.table is None or other.table is None:
            return GridMask(other.table if self.table is None else self.table, self.sizes, structure)
        return GridMask(self.table + other.table, self.sizes, structure)


class _RelativePositionBias(Replacement):
    """Hands on its table for the image's grid, in place of the bias of every pair."""

    def forward(
        self: Any, window_size: tuple[int, int], interpolate_pos_encoding: bool = False, dim_size: int | None = None
    ) -> GridMask:
        """The table, interpolated where the image has another grid than the model.

        With interpolate_pos_encoding=True the original interpolates the pairs [L, L] to [dim_size, dim_size]. Every
        model asks for dim_size = L, which changes nothing. For another size the pairs are made.
        """
        height, width = window_size
        if interpolate_pos_encoding and dim_size != height * width + 1:
            pairs = super().forward(window_size, interpolate_pos_encoding, dim_size)  # pyright: ignore[reportAttributeAccessIssue]
            return GridMask(None, (height, width), MaskStructure(attn_mask=pairs))
        own_height, own_width = self.window_size
        table = self.relative_position_bias_table
        image = table[:-CLASS_ROWS].reshape(1, 2 * own_width - 1, 2 * own_height - 1, -1).permute(0, 3, 1, 2)
        image = F.interpolate(image, size=(2 * height - 1, 2 * width - 1), mode="bilinear")
        rows = image.permute(0, 2, 3, 1).flatten(0, 2)
        return GridMask(torch.cat([rows, table[-CLASS_ROWS:]]), (height, width), MaskStructure())


class RelattnBeitRelativePositionBias(_RelativePositionBias, BeitRelativePositionBias):
    """BeitRelativePositionBias for attention on relattn."""


class RelattnData2VecVisionRelativePositionBias(_RelativePositionBias, Data2VecVisionRelativePositionBias):
    """Data2VecVisionRelativePositionBias for attention on relattn."""


class RelattnBeitAttention(Replacement, BeitAttention):
    """BeitAttention on relattn."""

    def forward(
        self,
        hidden_states: Float[Tensor, "B L width"],
        attention_mask: GridMask | MaskStructure | Tensor | None = None,
        **kwargs: Any,
    ) -> tuple[Tensor, Tensor | None]:
        """(output, attention weights if wanted), under BeitAttention's arguments."""
        projections = self.q_proj, self.k_proj, self.v_proj
        dropout = self.attention_dropout if self.training else 0.0
        with_weights = asks_for_weights(self, kwargs)
        output, weights = _attend(
            self, hidden_states, projections, self.head_dim, attention_mask, dropout, with_weights
        )
        return self.o_proj(output.flatten(2)), weights


class _Data2VecAttention(Replacement):
    """The common computation of both classes of Data2Vec-Vision."""

    def forward(
        self: Any,
        hidden_states: Float[Tensor, "B L width"],
        output_attentions: bool = False,
        relative_position_bias: GridMask | Tensor | None = None,
        interpolate_pos_encoding: bool = False,
        resolution: tuple[int, int] | None = None,
    ) -> tuple[Tensor] | tuple[Tensor, Tensor | None]:
        """(output, attention weights if wanted), under the original's arguments."""
        mask = relative_position_bias
        if self.has_relative_position_bias:
            assert resolution is not None
            height, width = (pixels // self.config.patch_size for pixels in resolution)
            mask = self.relative_position_bias((height, width), interpolate_pos_encoding, hidden_states.shape[1])
            mask = mask if relative_position_bias is None else mask + relative_position_bias
        projections = self.query, self.key, self.value
        dropout = self.dropout.p if self.training else 0.0
        output, weights = _attend(
            self, hidden_states, projections, self.attention_head_size, mask, dropout, output_attentions
        )
        return self.answer(output.flatten(2), weights, output_attentions)

    def answer(self, output: Tensor, weights: Tensor | None, output_attentions: bool) -> Any:
        """As the original with attn_implementation="eager" packs it."""
        return (output, weights) if output_attentions else (output,)


class RelattnData2VecVisionSelfAttention(_Data2VecAttention, Data2VecVisionSelfAttention):
    """Data2VecVisionSelfAttention on relattn."""


class RelattnData2VecVisionSdpaSelfAttention(_Data2VecAttention, Data2VecVisionSdpaSelfAttention):
    """Data2VecVisionSdpaSelfAttention on relattn; it can return weights, which the original cannot."""

    def answer(self, output: Tensor, weights: Tensor | None, output_attentions: bool) -> Any:
        """As the original with attn_implementation="sdpa" packs it."""
        return output, weights


def _attend(
    module: Any,
    hidden_states: Float[Tensor, "B L width"],
    projections: tuple[Any, Any, Any],
    head_dim: int,
    mask: GridMask | MaskStructure | Tensor | None,
    dropout: float,
    with_weights: bool,
) -> tuple[Float[Tensor, "B L H D"], Float[Tensor, "B H L L"] | None]:
    """Project, and attend with the bias of the grid."""
    query, key, value = projected(hidden_states, projections, head_dim)
    terms = None
    if isinstance(mask, GridMask):
        structure = mask.structure
        if mask.table is not None:
            structure = on_grid(structure, mask.sizes, prefix_tokens=1)
            terms = grid_terms(mask.table, mask.sizes)
    else:
        structure = as_structure(mask, False, 0)
    return attend(module, query, key, value, structure, terms, 1.0 / math.sqrt(head_dim), dropout, with_weights)


REPLACEMENTS = {
    BeitRelativePositionBias: RelattnBeitRelativePositionBias,
    BeitAttention: RelattnBeitAttention,
    Data2VecVisionRelativePositionBias: RelattnData2VecVisionRelativePositionBias,
    Data2VecVisionSelfAttention: RelattnData2VecVisionSelfAttention,
    Data2VecVisionSdpaSelfAttention: RelattnData2VecVisionSdpaSelfAttention,
}
"""The module of transformers, and its replacement."""
