"""Inkling: S = scale q . k + r . RK[d], r = W_r x with its own width, RK for 0 <= i - j < extent."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor
from transformers.models.inkling.modeling_inkling import InklingAttention

from relattn.equation.tables import OffsetTable
from relattn.equation.terms import ScoreTerms
from relattn.hf.interface import asks_for_weights, attend
from relattn.hf.masks import MaskStructure, as_structure
from relattn.hf.names import CACHE
from relattn.hf.replacement import Replacement


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
        past = {CACHE: past_key_values, "conv_mask": conv_mask}
        query = self.q_norm(heads(self, self.q_proj(hidden_states)))
        key = self.k_norm(heads(self, self.k_sconv(self.k_proj(hidden_states), **past)))
        value = heads(self, self.v_sconv(self.v_proj(hidden_states), **past))
        relative = self.r_proj(hidden_states).unflatten(-1, (self.num_heads, -1))
        if not self.is_sliding and self.config.log_scaling_n_floor is not None:
            start, _ = _starts(self.layer_idx, past_key_values, query)
            places = torch.arange(query.shape[1], device=query.device) + start
            query, relative = (scale_by_position(features, places, self.config) for features in (query, relative))
        output, weights = attend_relatively(
            self, query, key, value, relative, profiles(self, relative), attention_mask, past_key_values,
            asks_for_weights(self, kwargs),
        )  # fmt: skip
        return self.o_proj(output), weights


def heads(module: Any, features: Float[Tensor, "B L HD"]) -> Float[Tensor, "B L H D"]:
    """Head by head."""
    return features.unflatten(-1, (-1, module.head_dim))


def scale_by_position(
    features: Float[Tensor, "B L H D"], places: Int[Tensor, "*#B L"], config: Any
) -> Float[Tensor, "B L H D"]:
    """Scaled up by 1 + alpha log(n / floor) from the n-th token on, n = floor."""
    tau = 1.0 + config.log_scaling_alpha * torch.log(((places + 1).float() / config.log_scaling_n_floor).clamp(min=1.0))
    return (features.float() * tau[..., None, None]).to(features.dtype)


def _starts(layer: int, cache: Any, query: Float[Tensor, "B L H D"]) -> tuple[int | Tensor, int]:
    """Where the first query and the first key of the next update stand."""
    if cache is None:
        return 0, 0
    start = cache.get_query_offset(layer)
    start = start.clone().reshape(()) if isinstance(start, Tensor) else start  # a static cache changes it later
    return start, cache.get_mask_sizes(query.shape[1], layer)[1]


def attend_relatively(
    module: Any,
    query: Float[Tensor, "B L H D"],
    key: Float[Tensor, "B L Hk D"],
    value: Float[Tensor, "B L Hk D"],
    relative: Float[Tensor, "B L H R"],
    profiles: Float[Tensor, "1 extent R"],
    mask: MaskStructure | Tensor | None,
    cache: Any,
    with_weights: bool,
    sinks: Float[Tensor, "B H L"] | None = None,
    *,
    cache_offset: int = 0,
) -> tuple[Float[Tensor, "B L HD"], Tensor | None]:
    """Attention over all tokens so far, heads side by side; the module adds its relative logits unscaled.

    profiles: RK of the offsets 1 - extent .. 0. cache_offset: how many layers of the cache lie before the model's own.
    Positions and window come from the module: for static caches `generate` makes one mask for layers of both kinds.
    """
    layer = module.layer_idx + cache_offset
    start, first = _starts(layer, cache, query)
    query, key, value, relative = (features.transpose(1, 2) for features in (query, key, value, relative))
    if cache is not None:
        key, value = cache.update(key, value, layer)
    structure = as_structure(mask, module.is_causal, start)
    window = (module.sliding_window - 1, None) if module.is_sliding and structure.attn_mask is None else None
    structure = replace(structure, query_position=start, key_position=first, window=window)
    table = OffsetTable(profiles, 1 - profiles.shape[1], "zero")
    terms = ScoreTerms(relative_query=relative / module.scaling, relative_keys=table)
    dropout = module.attention_dropout if module.training else 0.0
    output, weights = attend(
        module, query, key, value, structure, terms, module.scaling, dropout, with_weights, sinks=sinks
    )
    return output.flatten(2), weights


def profiles(module: Any, relative: Float[Tensor, "B L H R"]) -> Float[Tensor, "1 extent R"]:
    """RK of the offsets 1 - extent .. 0: the module's answer to each number of r alone, for a query after all keys."""
    count, extent = relative.shape[-1], module.rel_logits_proj.rel_extent
    each = torch.eye(count, dtype=relative.dtype, device=relative.device)[None, :, None]
    keys = torch.arange(extent, device=relative.device)
    last = (extent - 1) * keys.new_ones(count)
    return module.rel_logits_proj(each, last, keys)[0].transpose(1, 2)


REPLACEMENTS = {
    InklingAttention: RelattnInklingAttention,
}
"""The module of transformers, and its replacement."""
