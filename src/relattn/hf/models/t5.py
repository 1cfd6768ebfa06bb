"""T5, mT5, FLAN-T5 and UMT5: S = q . k + b[bucket(d)], scale 1."""

from __future__ import annotations

from typing import Any

from jaxtyping import Float
from torch import Tensor, nn
from transformers.models.mt5.modeling_mt5 import MT5Attention, MT5Stack
from transformers.models.t5.modeling_t5 import T5Attention, T5Stack
from transformers.models.umt5.modeling_umt5 import UMT5Attention

from relattn.encodings.t5 import bias_table
from relattn.equation.terms import ScoreTerms
from relattn.hf.caches import cached
from relattn.hf.called import rows_of
from relattn.hf.interface import asks_for_weights, attend
from relattn.hf.masks import MaskStructure, as_structure
from relattn.hf.replacement import Replacement
from relattn.positions.positions import Span


class _Projected(Replacement):
    """The projections of queries, keys, values and the output, under these names."""

    needs = ("is_causal",)
    projections: tuple[str, str, str, str] = ("q", "k", "v", "o")


class SharedBias(_Projected):
    """The first layer makes the position bias, and the stack hands it on to the others.

    Here the first layer hands on the biases of the buckets, [num_buckets, H], instead of [1, H, Lq, Lk].
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
        """(output, the biases of the buckets, attention weights if wanted), under T5Attention's arguments."""
        if position_bias is None and self.has_relative_attention_bias:
            position_bias = buckets_of(self, self.relative_attention_bias, hidden_states)
        output, weights = _forward(self, hidden_states, mask, key_value_states, position_bias, past_key_values, kwargs)
        return output, position_bias, weights


class RelattnT5Attention(SharedBias, T5Attention):
    """T5Attention on relattn."""

    stack = T5Stack


class RelattnMT5Attention(SharedBias, MT5Attention):
    """MT5Attention on relattn."""

    stack = MT5Stack


class RelattnUMT5Attention(_Projected, UMT5Attention):
    """UMT5Attention on relattn: every layer has its own bias."""

    def forward(
        self,
        hidden_states: Float[Tensor, "B Lq d_model"],
        encoder_hidden_states: Float[Tensor, "B Lk d_model"] | None = None,
        past_key_values: Any = None,
        attention_mask: MaskStructure | Tensor | None = None,
        **kwargs: Any,
    ) -> tuple[Tensor, Tensor | None]:
        """(output, attention weights if wanted), under UMT5Attention's arguments."""
        bias = None
        if self.has_relative_attention_bias:
            bias = buckets_of(self, self.relative_attention_bias, hidden_states)
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
    query_of, key_of, value_of, output_of = (getattr(module, name) for name in module.projections)
    query = heads(module, query_of(hidden_states))
    start = 0 if memory is not None or cache is None else cache.get_seq_length(module.layer_idx)
    start = start.clone().reshape(()) if isinstance(start, Tensor) else start  # a static cache changes it later
    source = hidden_states if memory is None else memory
    key, value = cached(
        cache, module.layer_idx, memory is not None,
        lambda: (heads(module, key_of(source)), heads(module, value_of(source))),
    )  # fmt: skip
    if isinstance(mask, Tensor):  # a mask of pairs, maybe with more keys than there are
        mask = mask[..., : key.shape[2]]
    structure = as_structure(mask, module.is_causal, start)
    terms = None if bias is None else bucket_terms(module, bias)
    dropout = module.dropout if module.training else 0.0
    with_weights = asks_for_weights(module, kwargs)
    output, weights = attend(module, query, key, value, structure, terms, module.scaling, dropout, with_weights)
    return output_of(output.flatten(2)), weights


def buckets_of(module: Any, embedding: nn.Module, hidden_states: Tensor) -> Float[Tensor, "num_buckets H"]:
    """The biases of the module's buckets."""
    return rows_of(embedding, module.relative_attention_num_buckets, hidden_states.device)


def bucket_terms(module: Any, bias: Float[Tensor, "num_buckets H"]) -> ScoreTerms:
    """b[bucket(d)]; a module without a flag for decoding counts as a decoder."""
    furthest, bidirectional = module.relative_attention_max_distance, not getattr(module, "is_decoder", True)
    return ScoreTerms(bias=bias_table(bias, furthest, bidirectional, Span(-furthest, 2 * furthest + 1)))


def heads(module: Any, features: Float[Tensor, "B L inner"]) -> Float[Tensor, "B H L D"]:
    """Head by head."""
    return features.unflatten(-1, (module.n_heads, module.key_value_proj_dim)).transpose(1, 2)


REPLACEMENTS = {
    T5Attention: RelattnT5Attention,
    MT5Attention: RelattnMT5Attention,
    UMT5Attention: RelattnUMT5Attention,
}
"""The module of transformers, and its replacement."""
