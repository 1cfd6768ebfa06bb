"""Inkling 2's attention up to transformers 5.23: it projects, clips, scales and gates by itself."""

# pyright: reportCallIssue=false, reportAttributeAccessIssue=false
# Its classes have other parts in the transformers that pyright reads.

from __future__ import annotations

from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor
from transformers.models.inkling2.modeling_inkling2 import Inkling2FullAttention, Inkling2SlidingAttention

from relattn.hf.interface import asks_for_weights
from relattn.hf.masks import MaskStructure
from relattn.hf.models.inkling import attend_relatively, heads, profiles, scale_by_position
from relattn.hf.names import CACHE
from relattn.hf.replacement import Replacement


class _Attention(Replacement):
    """The common computation of both kinds of layers, after keys and values are convolved."""

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
        query = self.q_l2_clip(heads(self, self.q_proj(hidden_states)))
        relative = self.rel_l2_clip(self.r_proj(hidden_states).unflatten(-1, (self.num_heads, -1)))
        if places is not None:
            query, relative = (scale_by_position(features, places, self.config) for features in (query, relative))
        key, value = self.k_l2_clip(heads(self, key)), heads(self, value)
        value = self.v_norm(value.float()).to(value.dtype)
        sinks = self.sink_proj(hidden_states).transpose(1, 2)
        output, weights = attend_relatively(
            self, query, key, value, relative, profiles(self, relative), mask, cache, with_weights, sinks
        )
        gate = torch.sigmoid(self.gate_proj(hidden_states).float())
        return self.o_proj((output.float() * gate).to(output.dtype)), weights


class RelattnInkling2SlidingAttention(_Attention, Inkling2SlidingAttention):
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
        past = {CACHE: past_key_values, "conv_mask": conv_mask}
        key = self.k_sconv(self.k_proj(hidden_states), **past)
        value = self.v_sconv(self.v_proj(hidden_states), **past)
        with_weights = asks_for_weights(self, kwargs)
        return self.attended(hidden_states, key, value, attention_mask, past_key_values, None, with_weights)


class RelattnInkling2FullAttention(_Attention, Inkling2FullAttention):
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
        past = {CACHE: past_key_values, "conv_mask": conv_mask}
        key = self.k_sconv(self.k_proj(key_hidden_states), key_hidden_states, **past)
        value = self.v_sconv(self.v_proj(value_hidden_states), value_hidden_states, **past)
        places, with_weights = kwargs["position_ids"], asks_for_weights(self, kwargs)
        return self.attended(hidden_states, key, value, attention_mask, past_key_values, places, with_weights)


REPLACEMENTS = {
    Inkling2SlidingAttention: RelattnInkling2SlidingAttention,
    Inkling2FullAttention: RelattnInkling2FullAttention,
}
"""The modules of transformers, and their replacements."""
