"""Inkling and Inkling 2: S = scale q . k + r . RK[d], r = W_r x with its own width, RK for 0 <= i - j < extent."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor
from transformers.models.inkling.modeling_inkling import InklingAttention
from transformers.models.inkling2.modeling_inkling2 import (
    Inkling2BlockAttentionResidual,
    Inkling2FullAttention,
    Inkling2SlidingAttention,
)

from relattn.hf.interface import asks_for_weights, attend
from relattn.hf.masks import MaskStructure, as_structure
from relattn.hf.replacement import Replacement
from relattn.score.table import OffsetTable
from relattn.score.terms import ScoreTerms


class RelattnInklingAttention(Replacement, InklingAttention):
    """InklingAttention on relattn."""

    def forward(
        self,
        hidden_states: Float[Tensor, "B L width"],
        attention_mask: MaskStructure | Tensor | None,
        conv_mask: Tensor | None = None,
        past_key_values: Any = None,
        **kwargs: Any,
    ) -> tuple[Tensor, Tensor | None]:
        """(output, attention weights if wanted), under InklingAttention's arguments."""
        past = {"past_key_values": past_key_values, "conv_mask": conv_mask}
        query = self.q_norm(_heads(self, self.q_proj(hidden_states)))
        key = self.k_norm(_heads(self, self.k_sconv(self.k_proj(hidden_states), **past)))
        value = _heads(self, self.v_sconv(self.v_proj(hidden_states), **past))
        relative = self.r_proj(hidden_states).unflatten(-1, (self.num_heads, -1))
        if not self.is_sliding and self.config.log_scaling_n_floor is not None:
            start, _ = _starts(self, past_key_values, query)
            places = torch.arange(query.shape[1], device=query.device) + start
            query, relative = (_tempered(features, places, self.config) for features in (query, relative))
        output, weights = _attend(
            self, query, key, value, relative, attention_mask, past_key_values, asks_for_weights(self, kwargs)
        )
        return self.o_proj(output), weights


class _Inkling2Attention(Replacement):
    """The common computation of both kinds of Inkling 2's layers, after keys and values are convolved."""

    def attended(
        self: Any,
        hidden_states: Float[Tensor, "B L width"],
        key: Float[Tensor, "B L HkD"],
        value: Float[Tensor, "B L HkD"],
        mask: MaskStructure | Tensor | None,
        cache: Any,
        places: Int[Tensor, "#B L"] | None,
        with_weights: bool,
    ) -> tuple[Tensor, Tensor | None]:
        """(output, attention weights if wanted). One sink per token and head; a gate after the attention.

        places: the tokens' places, if queries grow with them.
        """
        query = self.q_l2_clip(_heads(self, self.q_proj(hidden_states)))
        relative = self.rel_l2_clip(self.r_proj(hidden_states).unflatten(-1, (self.num_heads, -1)))
        if places is not None:
            query, relative = (_tempered(features, places, self.config) for features in (query, relative))
        key, value = self.k_l2_clip(_heads(self, key)), _heads(self, value)
        value = self.v_norm(value.float()).to(value.dtype)
        sinks = self.sink_proj(hidden_states).transpose(1, 2)
        output, weights = _attend(self, query, key, value, relative, mask, cache, with_weights, sinks)
        gate = torch.sigmoid(self.gate_proj(hidden_states).float())
        return self.o_proj((output.float() * gate).to(output.dtype)), weights


class RelattnInkling2SlidingAttention(_Inkling2Attention, Inkling2SlidingAttention):
    """Inkling2SlidingAttention on relattn."""

    def forward(
        self,
        hidden_states: Float[Tensor, "B L width"],
        attention_mask: MaskStructure | Tensor | None,
        conv_mask: Tensor | None = None,
        past_key_values: Any = None,
        **kwargs: Any,
    ) -> tuple[Tensor, Tensor | None]:
        """(output, attention weights if wanted), under Inkling2SlidingAttention's arguments."""
        past = {"past_key_values": past_key_values, "conv_mask": conv_mask}
        key = self.k_sconv(self.k_proj(hidden_states), **past)
        value = self.v_sconv(self.v_proj(hidden_states), **past)
        with_weights = asks_for_weights(self, kwargs)
        return self.attended(hidden_states, key, value, attention_mask, past_key_values, None, with_weights)


class RelattnInkling2FullAttention(_Inkling2Attention, Inkling2FullAttention):
    """Inkling2FullAttention on relattn."""

    def forward(
        self,
        hidden_states: Float[Tensor, "B L width"],
        key_hidden_states: Float[Tensor, "B L width"],
        value_hidden_states: Float[Tensor, "B L width"],
        attention_mask: MaskStructure | Tensor | None,
        conv_mask: Tensor | None = None,
        past_key_values: Any = None,
        **kwargs: Any,
    ) -> tuple[Tensor, Tensor | None]:
        """(output, attention weights if wanted), under Inkling2FullAttention's arguments."""
        past = {"past_key_values": past_key_values, "conv_mask": conv_mask}
        key = self.k_sconv(self.k_proj(key_hidden_states), key_hidden_states, **past)
        value = self.v_sconv(self.v_proj(value_hidden_states), value_hidden_states, **past)
        places, with_weights = kwargs["position_ids"], asks_for_weights(self, kwargs)
        return self.attended(hidden_states, key, value, attention_mask, past_key_values, places, with_weights)


class RelattnInkling2BlockAttentionResidual(Replacement, Inkling2BlockAttentionResidual):
    """Inkling2BlockAttentionResidual, unchanged: every token attends only to its own states in the layers below."""


def _heads(module: Any, features: Float[Tensor, "B L HD"]) -> Float[Tensor, "B L H D"]:
    return features.unflatten(-1, (-1, module.head_dim))


def _tempered(
    features: Float[Tensor, "B L H D"], places: Int[Tensor, "*#B L"], config: Any
) -> Float[Tensor, "B L H D"]:
    """Scaled up by 1 + alpha log(n / floor) from the n-th token on, n = floor."""
    tau = 1.0 + config.log_scaling_alpha * torch.log(((places + 1).float() / config.log_scaling_n_floor).clamp(min=1.0))
    return (features.float() * tau[..., None, None]).to(features.dtype)


def _starts(module: Any, cache: Any, query: Float[Tensor, "B L H D"]) -> tuple[int | Tensor, int]:
    """Where the first query and the first key of the next update stand."""
    if cache is None:
        return 0, 0
    start = cache.get_query_offset(module.layer_idx)
    start = start.clone().reshape(()) if isinstance(start, Tensor) else start  # a static cache changes it later
    return start, cache.get_mask_sizes(query.shape[1], module.layer_idx)[1]


def _attend(
    module: Any,
    query: Float[Tensor, "B L H D"],
    key: Float[Tensor, "B L Hk D"],
    value: Float[Tensor, "B L Hk D"],
    relative: Float[Tensor, "B L H R"],
    mask: MaskStructure | Tensor | None,
    cache: Any,
    with_weights: bool,
    sinks: Float[Tensor, "B H L"] | None = None,
) -> tuple[Float[Tensor, "B L HD"], Tensor | None]:
    """Attention over all tokens so far, heads side by side; the module adds its relative logits unscaled.

    Positions and window come from the module: for static caches `generate` makes one mask for layers of both kinds.
    """
    start, first = _starts(module, cache, query)
    query, key, value, relative = (features.transpose(1, 2) for features in (query, key, value, relative))
    if cache is not None:
        key, value = cache.update(key, value, module.layer_idx)
    structure = as_structure(mask, module.is_causal, start)
    window = (module.sliding_window - 1, None) if module.is_sliding and structure.attn_mask is None else None
    structure = replace(structure, query_position=start, key_position=first, window=window)
    terms = ScoreTerms(relative_query=relative / module.scaling, relative_keys=_profiles(module, relative))
    dropout = module.attention_dropout if module.training else 0.0
    output, weights = attend(
        module, query, key, value, structure, terms, module.scaling, dropout, with_weights, sinks=sinks
    )
    return output.flatten(2), weights


def _profiles(module: Any, relative: Float[Tensor, "B H L R"]) -> OffsetTable:
    """RK of the offsets 1 - extent .. 0: the module's answer to each number of r alone, for a query after all keys."""
    count, extent = relative.shape[-1], module.rel_logits_proj.rel_extent
    each = torch.eye(count, dtype=relative.dtype, device=relative.device)[None, :, None]
    keys = torch.arange(extent, device=relative.device)
    last = (extent - 1) * keys.new_ones(count)
    rows = module.rel_logits_proj(each, last, keys)[0].transpose(1, 2)
    return OffsetTable(rows, 1 - extent, "zero")


REPLACEMENTS = {
    InklingAttention: RelattnInklingAttention,
    Inkling2SlidingAttention: RelattnInkling2SlidingAttention,
    Inkling2FullAttention: RelattnInkling2FullAttention,
    Inkling2BlockAttentionResidual: RelattnInkling2BlockAttentionResidual,
}
"""The module of transformers, and its replacement."""
