"""T5, mT5, FLAN-T5 and UMT5: S = q . k + b[bucket(d)], scale 1."""

from __future__ import annotations

from typing import Any

from jaxtyping import Float
from torch import Tensor
from transformers import EncoderDecoderCache
from transformers.models.mt5.modeling_mt5 import MT5Attention, MT5Stack
from transformers.models.t5.modeling_t5 import T5Attention, T5Stack
from transformers.models.umt5.modeling_umt5 import UMT5Attention

from relattn.encodings.t5 import bias_table
from relattn.hf.interface import asks_for_weights, attend
from relattn.hf.masks import MaskStructure, as_structure
from relattn.hf.replacement import Replacement
from relattn.score.positions import Span
from relattn.score.terms import ScoreTerms


class _SharedBias(Replacement):
    """T5 and mT5: the first layer makes the position bias, and the stack hands it on to the others.

    What is handed on here are the biases of the buckets, [num_buckets, H], instead of [1, H, Lq, Lk].
    """

    def forward(
        self: Any,
        hidden_states: Float[Tensor, "B Lq d_model"],
        mask: MaskStructure | Tensor | None = None,
        key_value_states: Float[Tensor, "B Lk d_model"] | None = None,
        position_bias: Float[Tensor, "num_buckets H"] | None = None,
        past_key_values: Any = None,
        **kwargs: Any,
    ) -> tuple[Tensor, Tensor | None, Tensor | None]:
        """(output, the biases of the buckets, attention weights if asked for), under T5Attention's arguments."""
        if position_bias is None and self.has_relative_attention_bias:
            # a tensor of its own: a layer checkpointed with use_reentrant=True would make the parameter its output
            position_bias = self.relative_attention_bias.weight.clone()
        output, weights = _forward(self, hidden_states, mask, key_value_states, position_bias, past_key_values, kwargs)
        return output, position_bias, weights


class RelattnT5Attention(_SharedBias, T5Attention):
    """T5Attention on relattn."""

    stack = T5Stack


class RelattnMT5Attention(_SharedBias, MT5Attention):
    """MT5Attention on relattn."""

    stack = MT5Stack


class RelattnUMT5Attention(Replacement, UMT5Attention):
    """UMT5Attention on relattn: every layer has a bias of its own."""

    def forward(
        self,
        hidden_states: Float[Tensor, "B Lq d_model"],
        encoder_hidden_states: Float[Tensor, "B Lk d_model"] | None = None,
        past_key_values: Any = None,
        attention_mask: MaskStructure | Tensor | None = None,
        **kwargs: Any,
    ) -> tuple[Tensor, Tensor | None]:
        """(output, attention weights if asked for), under UMT5Attention's arguments."""
        bias = self.relative_attention_bias.weight if self.has_relative_attention_bias else None
        return _forward(self, hidden_states, attention_mask, encoder_hidden_states, bias, past_key_values, kwargs)


def _forward(
    module: Any,
    hidden_states: Float[Tensor, "B Lq d_model"],
    mask: MaskStructure | Tensor | None,
    memory: Float[Tensor, "B Lk d_model"] | None,
    bias: Float[Tensor, "num_buckets H"] | None,
    cache: Any,
    kwargs: dict[str, Any],
) -> tuple[Tensor, Tensor | None]:
    """Project, append to the cache or read the memory's keys from it, attend, project."""
    query = _heads(module, module.q(hidden_states))
    start = 0 if memory is not None or cache is None else cache.get_seq_length(module.layer_idx)
    start = start.clone().reshape(()) if isinstance(start, Tensor) else start  # which a static cache counts on in
    key, value = _keys_and_values(module, hidden_states, memory, cache)
    structure = as_structure(mask, module.is_causal, start)
    terms = None
    if bias is not None:
        furthest = module.relative_attention_max_distance
        bidirectional = not module.is_decoder
        terms = ScoreTerms(bias=bias_table(bias, furthest, bidirectional, Span(-furthest, 2 * furthest + 1)))
    dropout = module.dropout if module.training else 0.0
    with_weights = asks_for_weights(module, kwargs)
    output, weights = attend(module, query, key, value, structure, terms, module.scaling, dropout, with_weights)
    return module.o(output.flatten(2)), weights


def _heads(module: Any, features: Float[Tensor, "B L inner"]) -> Float[Tensor, "B H L D"]:
    return features.unflatten(-1, (module.n_heads, module.key_value_proj_dim)).transpose(1, 2)


def _keys_and_values(module: Any, hidden_states: Tensor, memory: Tensor | None, cache: Any) -> tuple[Tensor, Tensor]:
    """Keys and values [B, H, Lk, D], those of a memory computed once where an encoder-decoder cache holds them."""
    crossing = memory is not None
    both = isinstance(cache, EncoderDecoderCache)
    mine = (cache.cross_attention_cache if crossing else cache.self_attention_cache) if both else cache
    if crossing and both and cache.is_updated.get(module.layer_idx):
        held = mine.layers[module.layer_idx]
        return held.keys, held.values
    source = memory if memory is not None else hidden_states
    key, value = _heads(module, module.k(source)), _heads(module, module.v(source))
    if mine is not None:
        key, value = mine.update(key, value, module.layer_idx)
        if crossing and both:
            cache.is_updated[module.layer_idx] = True
    return key, value


REPLACEMENTS = {
    T5Attention: RelattnT5Attention,
    MT5Attention: RelattnMT5Attention,
    UMT5Attention: RelattnUMT5Attention,
}
"""The module of transformers, and what takes its place."""
