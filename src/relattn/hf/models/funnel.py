"""Funnel: Transformer-XL's terms over the places that pooled tokens had, and a term for segments."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor
from transformers.models.funnel.modeling_funnel import (
    FunnelAttentionStructure,
    FunnelPreTrainedModel,
    FunnelRelMultiheadAttention,
)

from relattn.equation.tables import OffsetTable, wide
from relattn.equation.terms import ScoreTerms
from relattn.errors import UnsupportedError
from relattn.hf.interface import attend
from relattn.hf.masks import MaskStructure
from relattn.hf.replacement import Replacement
from relattn.positions.grid import GridPositions

KINDS = 3
"""The segments 0, 1 and 2; 2, the class token's, counts as each of them."""


@dataclass(frozen=True)
class Places:
    """Where queries and keys stand among the tokens, and their segments.

    sinusoids: sin and cos of the offsets -2L .. 2L - 1, query - key. stride: the tokens from one key to the next; from
        one query to the next twice as many if `queries_pooled`. attention_mask: that of the keys.
    """

    sinusoids: Float[Tensor, "4L d_model"]
    query_kinds: Int[Tensor, "B Lq"] | None
    key_kinds: Int[Tensor, "B Lk"] | None
    attention_mask: Float[Tensor, "B Lk"] | None
    stride: int = 1
    queries_pooled: bool = False


class RelattnFunnelAttentionStructure(Replacement, FunnelAttentionStructure):
    """FunnelAttentionStructure, which hands on places instead of positions and masks for each pair."""

    stack = FunnelPreTrainedModel
    by_name = False
    needs = ("stride_pool", "pool_tensor", "sin_dropout", "cos_dropout")

    def init_attention_inputs(
        self,
        inputs_embeds: Float[Tensor, "B L d_model"],
        attention_mask: Float[Tensor, "B L"] | None = None,
        token_type_ids: Int[Tensor, "B L"] | None = None,
    ) -> Places:  # pyright: ignore[reportIncompatibleMethodOverride]
        """The places of tokens that are not pooled yet.

        Raises UnsupportedError: for other segments than 0, 1 and 2.
        """
        if token_type_ids is not None:
            _check(token_type_ids)
        length, width = inputs_embeds.shape[1], self.config.d_model // 2
        like = wide(inputs_embeds)
        offsets = torch.arange(-2 * length, 2 * length, dtype=like.dtype, device=like.device)
        frequencies = 10000.0 ** -(torch.arange(width, dtype=like.dtype, device=like.device) / width)
        angles = offsets.unsqueeze(1) * frequencies
        sinusoids = torch.cat([self.sin_dropout(angles.sin()), self.cos_dropout(angles.cos())], dim=-1)
        return Places(sinusoids, token_type_ids, token_type_ids, attention_mask)

    def pre_attention_pooling(
        self: Any, output: Float[Tensor, "B L d_model"], attention_inputs: Places
    ) -> tuple[Tensor, Places]:  # pyright: ignore[reportIncompatibleMethodOverride]
        """The pooled queries, with pool_q_only=False also pooled keys, and their places."""
        pooled = self.pool_tensor(output, mode=self.config.pooling_type)
        kinds = self.stride_pool(attention_inputs.query_kinds, 1)
        places = replace(attention_inputs, query_kinds=kinds, queries_pooled=True)
        return pooled, places if self.config.pool_q_only else self._keys_pooled(places)

    def post_attention_pooling(self, attention_inputs: Places) -> Places:  # pyright: ignore[reportIncompatibleMethodOverride]
        """The places after the layer that pooled its queries: keys now stand where the queries stand."""
        return self._keys_pooled(attention_inputs) if self.config.pool_q_only else attention_inputs

    def _keys_pooled(self: Any, places: Places) -> Places:
        return replace(
            places,
            key_kinds=places.query_kinds,
            attention_mask=self.pool_tensor(places.attention_mask, mode="min"),
            stride=2 * places.stride,
            queries_pooled=False,
        )


class RelattnFunnelRelMultiheadAttention(Replacement, FunnelRelMultiheadAttention):
    """FunnelRelMultiheadAttention on relattn: both attention types are one formula."""

    stack = FunnelPreTrainedModel
    by_name = False

    def forward(
        self,
        query: Float[Tensor, "B Lq d_model"],
        key: Float[Tensor, "B Lk d_model"],
        value: Float[Tensor, "B Lk d_model"],
        attention_inputs: Places,
        output_attentions: bool = False,
    ) -> tuple[Tensor, ...]:  # pyright: ignore[reportIncompatibleMethodOverride]
        """(output, attention weights if wanted), under FunnelRelMultiheadAttention's arguments."""
        q, k, v = (
            projection(features).unflatten(-1, (self.config.n_head, -1)).transpose(1, 2)
            for projection, features in ((self.q_head, query), (self.k_head, key), (self.v_head, value))
        )
        mask = attention_inputs.attention_mask
        terms, structure = _terms(self, q, k.shape[2], attention_inputs)
        structure = replace(structure, key_mask=None if mask is None else mask.bool())
        dropout = self.attention_dropout.p if self.training else 0.0
        attended, weights = attend(self, q, k, v, structure, terms, self.scale, dropout, output_attentions)
        output = self.layer_norm(query + self.hidden_dropout(self.post_proj(attended.flatten(2))))
        return (output,) if weights is None else (output, weights)


def _check(kinds: Int[Tensor, "B L"]) -> None:
    """Only segments that have a row are allowed; a compiled graph does not check."""
    if not torch.compiler.is_compiling() and bool(((kinds < 0) | (kinds >= KINDS)).any()):
        raise UnsupportedError(
            "token_type_ids: got others than 0, 1 and 2, the segments of Funnel's tokenizers; call relattn.hf.unpatch"
        )


def _terms(
    module: Any, query: Float[Tensor, "B H Lq D"], keys: int, places: Places
) -> tuple[ScoreTerms, MaskStructure]:
    """q + u; on the axis of places q + v and W R; on the axis of segments q + s and two vectors, for different and
    equal.

    With separate_cls the class token stands on neither axis.
    """
    prefix_tokens, queries, step = int(module.config.separate_cls), query.shape[2], 1 + places.queries_pooled
    u, v, s = (bias.unsqueeze(1) for bias in (module.r_w_bias, module.r_r_bias, module.r_s_bias))
    first, last = -step * max(queries - 1 - prefix_tokens, 0), max(keys - 1 - prefix_tokens, 0)
    offsets = torch.arange(first, last + 1, device=query.device)
    sinusoids = places.sinusoids[places.sinusoids.shape[0] // 2 - places.stride * offsets]
    rows = torch.einsum("rm,mnd->nrd", sinusoids.to(module.r_kernel.dtype), module.r_kernel)
    place = ScoreTerms(relative_query=query + v, relative_keys=OffsetTable(rows, first, "error"))
    terms = ScoreTerms(query=query + u) + place.on("place")
    query_position: dict[str, Any] = {"place": GridPositions(((step, 1, queries),), prefix_tokens=prefix_tokens)}
    key_position: dict[str, Any] = {"place": GridPositions(((1, 1, keys),), prefix_tokens=prefix_tokens)}
    if places.query_kinds is not None and places.key_kinds is not None:
        both = torch.einsum("bnld,snd->bnls", query + s, module.seg_embed)
        stands = torch.arange(queries, device=query.device) >= prefix_tokens
        terms += ScoreTerms(relative_query=both * stands.unsqueeze(1), relative_keys=_by_kinds(both)).on("segment")
        kinds = places.key_kinds.clone()
        kinds[:, :prefix_tokens] = KINDS
        query_position["segment"], key_position["segment"] = -(KINDS + 1) * places.query_kinds, kinds
    return terms, MaskStructure(query_position=query_position, key_position=key_position)


def _by_kinds(like: Tensor) -> OffsetTable:
    """The row for a query of kind a and a key of kind b at the offset 4 a + b: (1, 0) different, (0, 1) equal.

    A key that stands off the grid has the kind 3, which adds nothing.
    """
    rows = [
        [float(b < KINDS and not equal), float(b < KINDS and equal)]
        for a in range(KINDS)
        for b in range(KINDS + 1)
        for equal in [a == b or KINDS - 1 in (a, b)]
    ]
    return OffsetTable(like.new_tensor(rows).unsqueeze(0), 0, "clamp")


REPLACEMENTS = {
    FunnelAttentionStructure: RelattnFunnelAttentionStructure,
    FunnelRelMultiheadAttention: RelattnFunnelRelMultiheadAttention,
}
"""The module of transformers, and its replacement."""
