"""LayoutLMv2 and LayoutLMv3: S = q . k / sqrt(D) + b[d] + bx[dx] + by[dy], T5's buckets of the text and of the page."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from jaxtyping import Float, Int64
from torch import Tensor, nn
from transformers.models.layoutlmv2.modeling_layoutlmv2 import LayoutLMv2Encoder, LayoutLMv2SelfAttention
from transformers.models.layoutlmv3.modeling_layoutlmv3 import LayoutLMv3Encoder, LayoutLMv3SelfAttention

from relattn.encodings.t5 import bias_table
from relattn.equation.tables import wide
from relattn.equation.terms import ScoreTerms
from relattn.hf.called import columns_of
from relattn.hf.interface import attend
from relattn.hf.masks import MaskStructure, as_structure
from relattn.hf.output_recording import is_recording
from relattn.hf.replacement import Replacement
from relattn.positions.positions import SEQUENCE, Span


@dataclass
class Placed:
    """Biases, and the tokens' positions on the axes: the encoder hands these to its layers in place of pairs."""

    made_for: Callable[[Tensor], ScoreTerms]
    """The biases for features of a dtype, which the encoder does not know before its first layer runs."""
    positions: Mapping[str, Int64[Tensor, "#B L"]]
    made: ScoreTerms | None = None

    def terms(self, features: Tensor) -> ScoreTerms:
        """The biases, made once."""
        if self.made is None:
            self.made = self.made_for(features)
        return self.made


class _Encoder(Replacement):
    """Hands its layers tables and positions. As in the original, the biases get no gradients."""

    def divisor(self) -> float:
        """The divisor of the biases."""
        return 1.0

    def on_sequence(self: Any, position_ids: Int64[Tensor, "#B L"]) -> Placed:
        """The positions in the order of the text; the visual tokens count from 0 again."""
        return Placed(
            lambda features: self.bias("rel_pos_bias", self.rel_pos_bins, self.max_rel_pos, features),
            {SEQUENCE: position_ids},
        )

    def on_page(self: Any, bbox: Int64[Tensor, "#B L 4"]) -> Placed:
        """The positions by the left and the lower edge of the tokens' boxes."""

        def made_for(features: Tensor) -> ScoreTerms:
            x, y = (
                self.bias(f"rel_pos_{axis}_bias", self.rel_2d_pos_bins, self.max_rel_2d_pos, features).on(axis)
                for axis in ("x", "y")
            )
            return x + y

        return Placed(made_for, {"x": bbox[:, :, 0], "y": bbox[:, :, 3]})

    def bias(self: Any, name: str, buckets: int, furthest: int, features: Tensor) -> ScoreTerms:
        """The biases of a projection of buckets, by offset."""
        with torch.no_grad():
            rows = wide(columns_of(_past_adapters(getattr(self, name)), buckets, features)) / self.divisor()
            return ScoreTerms(bias=bias_table(rows, furthest, True, Span(-furthest, 2 * furthest + 1)))


def _past_adapters(projection: nn.Module) -> nn.Module:
    """The layer that holds the projection's weight: the original reads this weight, so past an adapter."""
    weight = getattr(projection, "weight", None)
    holders = (
        one for one in projection.modules() if any(parameter is weight for parameter in one.parameters(recurse=False))
    )
    return next(holders, projection)


class RelattnLayoutLMv2Encoder(_Encoder, LayoutLMv2Encoder):
    """LayoutLMv2Encoder for attention on relattn."""

    def _calculate_1d_position_embeddings(self, position_ids: Int64[Tensor, "#B L"]) -> Placed:
        return self.on_sequence(position_ids)

    def _calculate_2d_position_embeddings(self, bbox: Int64[Tensor, "#B L 4"]) -> Placed:
        return self.on_page(bbox)


class RelattnLayoutLMv3Encoder(_Encoder, LayoutLMv3Encoder):
    """LayoutLMv3Encoder for attention on relattn."""

    def divisor(self) -> float:
        """sqrt(D): the scale applies to the biases, too."""
        return math.sqrt(self.config.hidden_size // self.config.num_attention_heads)

    def _cal_1d_pos_emb(self, position_ids: Int64[Tensor, "#B L"]) -> Placed:
        return self.on_sequence(position_ids)

    def _cal_2d_pos_emb(self, bbox: Int64[Tensor, "#B L 4"]) -> Placed | None:
        """Without the biases of the text those of the page are not added, as in the original."""
        return self.on_page(bbox) if self.has_relative_attention_bias else None

    def _compute_position_bias(
        self, position_ids: Int64[Tensor, "#B L"], bbox: Int64[Tensor, "#B L 4"]
    ) -> list[Placed | None] | None:
        """All biases at once, as from transformers 5.24 on."""
        if not self.has_relative_attention_bias:
            return None
        return [self.on_sequence(position_ids), self.on_page(bbox) if self.has_spatial_attention_bias else None]


class RelattnLayoutLMv2SelfAttention(Replacement, LayoutLMv2SelfAttention):
    """LayoutLMv2SelfAttention on relattn."""

    stack = LayoutLMv2Encoder
    needs = ("compute_qkv",)

    def forward(
        self,
        hidden_states: Float[Tensor, "B L width"],
        attention_mask: Tensor | None = None,
        rel_pos: Placed | None = None,
        rel_2d_pos: Placed | None = None,
        **kwargs: Any,
    ) -> tuple[Tensor, Tensor | None]:
        """(output, attention weights if wanted), under LayoutLMv2SelfAttention's arguments.

        attention_mask [B, 1, 1 or Lq, Lk]: any number but 0 hides a pair.
        """
        structure = MaskStructure()
        if attention_mask is not None:
            shown = ~attention_mask.bool()
            of_keys = shown.shape[1:3] == (1, 1)
            structure = MaskStructure(key_mask=shown[:, 0, 0]) if of_keys else MaskStructure(attn_mask=shown)
        projected = self.compute_qkv(hidden_states)
        return _attend(self, projected, structure, [rel_pos, rel_2d_pos], kwargs)


class RelattnLayoutLMv3SelfAttention(Replacement, LayoutLMv3SelfAttention):
    """LayoutLMv3SelfAttention on relattn. Its special softmax equals the softmax; it only avoids overflow."""

    stack = LayoutLMv3Encoder

    def forward(
        self,
        hidden_states: Float[Tensor, "B L width"],
        attention_mask: MaskStructure | Tensor | None = None,
        rel_pos: Placed | None = None,
        rel_2d_pos: Placed | None = None,
        position_bias: Sequence[Placed | None] | None = None,
        **kwargs: Any,
    ) -> tuple[Tensor, Tensor | None]:
        """(output, attention weights if wanted), under LayoutLMv3SelfAttention's arguments.

        position_bias: both, from transformers 5.24 on.
        """
        projected = self.query(hidden_states), self.key(hidden_states), self.value(hidden_states)
        biases = position_bias or [rel_pos, rel_2d_pos]
        return _attend(self, projected, as_structure(attention_mask, False, 0), biases, kwargs)


def _attend(
    module: Any,
    projected: tuple[Tensor, Tensor, Tensor],
    structure: MaskStructure,
    biases: Sequence[Placed | None],
    kwargs: dict[str, Any],
) -> tuple[Float[Tensor, "B L HD"], Float[Tensor, "B H L L"] | None]:
    """Attend with the biases that the configuration turns on, and put the heads side by side."""
    head_dim = module.attention_head_size
    query, key, value = (features.unflatten(-1, (-1, head_dim)).transpose(1, 2) for features in projected)
    terms, on = None, [one for one in biases if one is not None]
    if on:
        terms = sum((one.terms(query) for one in on), ScoreTerms())
        where = {axis: place.expand(query.shape[0], -1) for one in on for axis, place in one.positions.items()}
        structure = replace(structure, query_position=where, key_position=where)
    flag = kwargs.get("output_attentions")
    with_weights = is_recording() if flag is None else flag
    dropout = module.dropout.p if module.training else 0.0
    output, weights = attend(module, query, key, value, structure, terms, head_dim**-0.5, dropout, with_weights)
    return output.flatten(2), weights


REPLACEMENTS = {
    LayoutLMv2Encoder: RelattnLayoutLMv2Encoder,
    LayoutLMv2SelfAttention: RelattnLayoutLMv2SelfAttention,
    LayoutLMv3Encoder: RelattnLayoutLMv3Encoder,
    LayoutLMv3SelfAttention: RelattnLayoutLMv3SelfAttention,
}
"""The modules of transformers, and their replacements."""
