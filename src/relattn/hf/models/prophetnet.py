"""ProphetNet: S = q . k / sqrt(D) + r_i[bucket(d)], one number for each bucket, head and query, in n + 1 streams.

The main stream is causal. Predicting stream s attends to the main stream's keys up to s before the query, or to the
first key if there is none. It also attends to one extra key: its own.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor
from transformers.models.prophetnet.modeling_prophetnet import (
    ProphetNetAttention,
    ProphetNetDecoder,
    ProphetNetDecoderLayer,
    ProphetNetNgramSelfAttention,
)

from relattn.api import attention_and_lse, attention_weights
from relattn.encodings.t5 import buckets
from relattn.equation.tables import OffsetTable
from relattn.equation.terms import ScoreTerms
from relattn.hf.caches import KeysAndValues, cached
from relattn.hf.heads import projected
from relattn.hf.interface import attend
from relattn.hf.masks import MaskStructure, as_structure
from relattn.hf.replacement import Replacement


class RelattnProphetNetAttention(Replacement, ProphetNetAttention):
    """ProphetNetAttention on relattn: without positions, in the encoder and from the decoder to it."""

    by_name = False

    def forward(
        self,
        hidden_states: Float[Tensor, "B Lq width"],
        key_value_states: Float[Tensor, "B Lk width"] | None = None,
        attention_mask: Float[Tensor, "B H 1 Lk"] | None = None,
        past_key_values: Any = None,
        output_attentions: bool | None = False,
        **kwargs: Any,
    ) -> tuple[Tensor, Tensor | None]:
        """(output, the masked scores if attention weights are wanted, as in the original), under its arguments."""
        (query,) = projected(hidden_states, (self.query_proj,), self.head_dim)

        def project() -> KeysAndValues:
            source = hidden_states if key_value_states is None else key_value_states
            key, value = projected(source, (self.key_proj, self.value_proj), self.head_dim)
            return key, value

        key, value = cached(past_key_values, self.layer_idx, key_value_states is not None, project)
        mask = None if attention_mask is None or attention_mask.dim() == 0 else attention_mask
        scale, scores = self.head_dim**-0.5, None
        if output_attentions:
            scores = (query * scale) @ key.transpose(2, 3)
            scores = scores if mask is None else scores + mask
        dropout = self.attention_dropout if self.training else 0.0
        output, _ = attend(self, query, key, value, as_structure(mask, False, 0), None, scale, dropout, False)
        return F.dropout(self.out_proj(output.flatten(2)), self.dropout, self.training), scores


class RelattnProphetNetNgramSelfAttention(Replacement, ProphetNetNgramSelfAttention):
    """ProphetNetNgramSelfAttention on relattn: r is a relative query, and a bucket's relative key its one-hot row."""

    by_name = False
    stack = ProphetNetDecoder

    def forward(
        self,
        hidden_states: Float[Tensor, "B streams*L width"],
        past_key_values: Any = None,
        attention_mask: MaskStructure | None = None,
        extended_predict_attention_mask: MaskStructure | None = None,
        main_relative_position_buckets: None = None,
        predict_relative_position_buckets: None = None,
        position_ids: Tensor | None = None,
        **kwargs: Any,
    ) -> tuple[Tensor, Tensor | None, Tensor | None]:
        """(output, the main stream's weights, the weights of the others [B, n, H, L, Lk + L]); weights only if wanted.

        attention_mask: None for one token after a cache: there the original lets every stream attend to all keys.
        """
        features = projected(hidden_states, (self.query_proj, self.key_proj, self.value_proj), self.head_dim)
        streams = (of_all.chunk(1 + self.ngram, dim=2) for of_all in features)
        (query, key, value, relative), *others = zip(*streams, self._relative(hidden_states), strict=True)
        start = 0 if past_key_values is None else past_key_values.get_seq_length(self.layer_idx)
        start = start.clone().reshape(()) if isinstance(start, Tensor) else start  # a static cache changes it later
        key, value = cached(past_key_values, self.layer_idx, False, lambda: (key, value))
        structure = as_structure(attention_mask, True, start)
        scale, dropout = self.head_dim**-0.5, self.attention_dropout if self.training else 0.0
        terms = self._terms(relative, 0)
        output, weights = attend(self, query, key, value, structure, terms, scale, dropout, self.relattn_with_weights)
        ahead = [
            self._predicting_stream(0 if attention_mask is None else stream, key, value, structure, *own)
            for stream, own in enumerate(others)
        ]
        output = self.out_proj(torch.cat([output, *(out for out, _ in ahead)], dim=1).flatten(2))
        predicting = torch.stack([w for _, w in ahead if w is not None], dim=1) if self.relattn_with_weights else None
        return F.dropout(output, self.dropout, self.training), weights, predicting

    def _relative(self, hidden_states: Float[Tensor, "B streams*L width"]) -> list[Float[Tensor, "B H L buckets"]]:
        """r of every stream.

        Those of the predicting streams, [B, L, n, H, buckets], are read as if they were [B, n, H, L, buckets], as in
        transformers: r of one query comes from another token, stream and head, except where L is 1.
        """
        logits = self.relative_pos_embeddings(hidden_states).unflatten(-1, (self.num_buckets, self.num_attn_heads))
        streams = logits.transpose(2, 3).unflatten(1, (1 + self.ngram, -1))  # [B, streams, L, H, buckets]
        others = streams[:, 1:].transpose(1, 2)
        read = others.reshape(others.shape[0], self.ngram, self.num_attn_heads, -1, self.num_buckets)
        return [streams[:, 0].transpose(1, 2), *read.unbind(1)]

    def _predicting_stream(
        self,
        lag: int,
        key: Float[Tensor, "B H Lk D"],
        value: Float[Tensor, "B H Lk D"],
        structure: MaskStructure,
        query: Float[Tensor, "B H L D"],
        own_key: Float[Tensor, "B H L D"],
        own_value: Float[Tensor, "B H L D"],
        relative: Float[Tensor, "B H L buckets"],
    ) -> tuple[Float[Tensor, "B L H D"], Tensor | None]:
        """A predicting stream: attention to the main stream's keys, merged by its lse with attention to single keys."""
        scale, dropout = self.head_dim**-0.5, self.attention_dropout if self.training else 0.0
        terms = self._terms(relative, lag + 1)
        keywords: dict[str, Any] = {
            **replace(structure, key_position=lag).keywords(), "scale": scale, "encoding": terms
        }  # fmt: skip
        output, lse = attention_and_lse(query, key, value, dropout_p=dropout, backend=self.relattn_backend, **keywords)
        own = (query * own_key).sum(dim=-1) * scale + relative[..., 0]
        scores, length, early = [lse, own.to(lse.dtype)], query.shape[2], min(lag, query.shape[2])
        if early:  # these see the first key of the main stream, which is as many places before the predicted token
            places = self._buckets(-1 - torch.arange(early, device=query.device))
            first = (query[:, :, :early] * key[:, :, :1]).sum(dim=-1) * scale
            first = first + relative[:, :, :early].gather(-1, places.expand(*first.shape[:2], -1).unsqueeze(-1))[..., 0]
            if structure.key_mask is not None:
                first = first.masked_fill(~structure.key_mask[:, None, :1], float("-inf"))
            scores.append(F.pad(first.to(lse.dtype), (0, length - early), value=float("-inf")))
        shares = torch.stack(scores, dim=-1).softmax(dim=-1).to(query.dtype)
        weights = None
        if self.relattn_with_weights:
            main = attention_weights(query, key, value, **keywords) * shares[..., :1]
            if early:
                main = main + F.pad(shares[..., 2:], (0, key.shape[2] - 1))
            weights = torch.cat([main, torch.diag_embed(shares[..., 1])], dim=-1)
        dropped_shares = F.dropout(shares[..., 1:], dropout, self.training)
        merged = shares[..., :1] * output + dropped_shares[..., :1] * own_value
        if early:
            merged = merged + dropped_shares[..., 1:] * value[:, :, :1]
        return merged.transpose(1, 2), weights

    def _terms(self, relative: Float[Tensor, "B H L buckets"], shift: int) -> ScoreTerms:
        """r_i[bucket(d - shift)]; beyond the furthest distance, and in the future, the bucket does not change."""
        offsets = torch.arange(-self.relative_max_distance, 1, device=relative.device)
        rows = F.one_hot(self._buckets(offsets), self.num_buckets).to(relative.dtype).unsqueeze(0)
        keys = OffsetTable(rows, shift - self.relative_max_distance, "clamp")
        return ScoreTerms(relative_query=relative * self.head_dim**0.5, relative_keys=keys)

    def _buckets(self, offsets: Tensor) -> Tensor:
        return buckets(offsets, self.num_buckets, self.relative_max_distance, False)


class RelattnProphetNetDecoderLayer(Replacement, ProphetNetDecoderLayer):
    """ProphetNetDecoderLayer, which tells its attention whether the weights are wanted."""

    by_name = False
    stack = ProphetNetDecoder

    def forward(self, *args: Any, output_attentions: bool | None = False, **kwargs: Any) -> Any:
        """As ProphetNetDecoderLayer's."""
        self.self_attn.relattn_with_weights = bool(output_attentions)  # pyright: ignore[reportArgumentType]
        return super().forward(*args, output_attentions=output_attentions, **kwargs)


class RelattnProphetNetDecoder(Replacement, ProphetNetDecoder):
    """ProphetNetDecoder, which hands its layers a key mask, and no buckets or masks of pairs."""

    by_name = False

    def compute_buffered_relative_buckets(self, position_ids: Tensor) -> tuple[None, None]:
        """Nothing: an offset needs no matrix."""
        return None, None

    def prepare_attention_mask(self, hidden_states: Tensor, attention_mask: Tensor | None) -> MaskStructure:
        """attention_mask [B, L], 1 for a token."""
        return MaskStructure(is_causal=True, key_mask=None if attention_mask is None else attention_mask.bool())

    def prepare_predict_attention_mask(self, hidden_states: Tensor, attention_mask: Tensor | None) -> MaskStructure:
        """The mask of the main stream: a predicting stream masks no key of its own."""
        return self.prepare_attention_mask(hidden_states, attention_mask)


REPLACEMENTS = {
    ProphetNetAttention: RelattnProphetNetAttention,
    ProphetNetNgramSelfAttention: RelattnProphetNetNgramSelfAttention,
    ProphetNetDecoderLayer: RelattnProphetNetDecoderLayer,
    ProphetNetDecoder: RelattnProphetNetDecoder,
}
"""The module of transformers, and its replacement."""
