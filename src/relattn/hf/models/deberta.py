"""DeBERTa, and DeBERTa-v2 and v3: content to position and position to content, scale 1 / sqrt(3 D)."""

from __future__ import annotations

from typing import Any

from jaxtyping import Float
from torch import Tensor, nn
from transformers.models.deberta import modeling_deberta as v1
from transformers.models.deberta_v2 import modeling_deberta_v2 as v2

from relattn.encodings.disentangled import disentangled_table
from relattn.equation.tables import OffsetTable
from relattn.equation.terms import ScoreTerms
from relattn.errors import UnsupportedError
from relattn.hf.interface import attend
from relattn.hf.masks import MaskStructure, as_structure
from relattn.hf.replacement import Replacement
from relattn.positions.contiguous import ContiguousPositions
from relattn.positions.positions import Positions


class DisentangledEncoder(Replacement):
    """Hands its layers a key mask instead of a mask of pairs, and no matrix of relative positions."""

    @staticmethod
    def cannot(module: Any) -> str | None:
        """Its layers read its results, so it changes together with them or not at all."""
        return next((r for layer in module.layer if (r := _Attention.cannot(layer.attention.self))), None)

    def get_attention_mask(self: Any, attention_mask: Tensor) -> MaskStructure:
        """attention_mask [B, L], 1 for a token; or [B, L, L] or [B, 1, L, L], 1 for a pair that attends.

        In the original a padding token attends to padding and text; here only to the text. Nothing uses its output.
        """
        if attention_mask.dim() <= 2:
            return MaskStructure(key_mask=attention_mask.bool())
        pairs = attention_mask.unsqueeze(1) if attention_mask.dim() == 3 else attention_mask
        return MaskStructure(attn_mask=pairs.bool())

    def get_rel_pos(self: Any, hidden_states: Tensor, query_states: Any = None, relative_pos: Any = None) -> None:
        """None: an offset needs no matrix.

        Raises UnsupportedError: when the caller gives a matrix.
        """
        if relative_pos is not None:
            raise UnsupportedError(
                f"relative_pos: got a matrix of relative positions {list(relative_pos.shape)}; relattn counts them "
                "from the tokens' places; leave it out, or call relattn.hf.unpatch"
            )


class RelattnDebertaEncoder(DisentangledEncoder, v1.DebertaEncoder):
    """DebertaEncoder for attention on relattn."""


class RelattnDebertaV2Encoder(DisentangledEncoder, v2.DebertaV2Encoder):
    """DebertaV2Encoder for attention on relattn."""


class _Attention(Replacement):
    """What both versions share: project, attend, put the heads side by side."""

    @staticmethod
    def cannot(module: nn.Module) -> str | None:
        """Heads that talk mix scores across heads, before and after the softmax."""
        return "talking_head=True mixes the scores of all heads" if getattr(module, "talking_head", False) else None

    def forward(
        self: Any,
        hidden_states: Float[Tensor, "B Lk width"],
        attention_mask: MaskStructure | Tensor | None,
        output_attentions: bool = False,
        query_states: Float[Tensor, "B Lq width"] | None = None,
        relative_pos: None = None,
        rel_embeddings: Float[Tensor, "2K width"] | None = None,
    ) -> tuple[Tensor, Tensor | None]:
        """(output, attention weights if wanted), under DisentangledSelfAttention's arguments."""
        query, key, value = self.projected(hidden_states, query_states)
        relative_keys = relative_queries = None
        if self.relative_attention and rel_embeddings is not None:
            positions = Positions(
                ContiguousPositions(0), ContiguousPositions(0), query.shape[2], key.shape[2], query.device
            )
            relative_keys, relative_queries = self.tables(self.pos_dropout(rel_embeddings), positions)
        terms = ScoreTerms(relative_keys=relative_keys, relative_queries=relative_queries)
        if isinstance(attention_mask, Tensor):  # from an encoder that is not patched: any number but 0 attends
            attention_mask = attention_mask.bool()
        structure = as_structure(attention_mask, False, 0)
        scale = (query.shape[3] * self.scale_factor()) ** -0.5
        dropout = self.dropout_probability() if self.training else 0.0
        output, weights = attend(self, query, key, value, structure, terms, scale, dropout, output_attentions)
        return output.flatten(2), weights

    def dropout_probability(self: Any) -> float:
        """The probability with which a weight is dropped in training."""
        return self.dropout.p

    def heads(self: Any, features: Float[Tensor, "B L HD"]) -> Float[Tensor, "B H L D"]:
        """Head by head."""
        return features.unflatten(-1, (self.num_attention_heads, -1)).transpose(1, 2)

    def table(
        self: Any, projection: nn.Linear, embeddings: Float[Tensor, "rows width"], positions: Positions
    ) -> OffsetTable:
        """The projected rows, by offset."""
        rows = self.heads(projection(embeddings).unsqueeze(0))[0]
        buckets = getattr(self, "position_buckets", -1)
        return disentangled_table(rows, self.max_relative_positions, buckets if buckets > 0 else None, positions)


class RelattnDisentangledSelfAttention(_Attention, v1.DisentangledSelfAttention):
    """DeBERTa's DisentangledSelfAttention on relattn."""

    def projected(self, hidden_states: Tensor, query_states: Tensor | None) -> tuple[Tensor, Tensor, Tensor]:
        """q + its bias, k, v + its bias; in_proj holds the three of each head side by side."""
        query, key, value = self.heads(self.in_proj(hidden_states)).chunk(3, dim=-1)
        if query_states is not None:
            query = self.heads(self.in_proj(query_states)).chunk(3, dim=-1)[0]
        q_bias, v_bias = (self.heads(bias[None, None]) for bias in (self.q_bias, self.v_bias))
        return query + q_bias, key, value + v_bias

    def scale_factor(self) -> int:
        """How many terms the scores have."""
        return 1 + len(self.pos_att_type)

    def tables(
        self, embeddings: Float[Tensor, "2K width"], positions: Positions
    ) -> tuple[OffsetTable | None, OffsetTable | None]:
        """Relative keys (c2p) and relative queries (p2c)."""
        c2p, p2c = ("c2p" in self.pos_att_type, "p2c" in self.pos_att_type)
        return (
            self.table(self.pos_proj, embeddings, positions) if c2p else None,
            self.table(self.pos_q_proj, embeddings, positions) if p2c else None,
        )


class DisentangledAttentionV2(_Attention):
    """The computation of DeBERTa-v2."""

    def projected(self: Any, hidden_states: Tensor, query_states: Tensor | None) -> tuple[Tensor, Tensor, Tensor]:
        """q, k, v."""
        query = hidden_states if query_states is None else query_states
        projections = (self.query_proj, query), (self.key_proj, hidden_states), (self.value_proj, hidden_states)
        query, key, value = (self.heads(projection(features)) for projection, features in projections)
        return query, key, value

    def scale_factor(self: Any) -> int:
        """How many terms the scores have."""
        return 1 + ("c2p" in self.pos_att_type) + ("p2c" in self.pos_att_type)

    def tables(
        self: Any, embeddings: Float[Tensor, "2K width"], positions: Positions
    ) -> tuple[OffsetTable | None, OffsetTable | None]:
        """Relative keys (c2p) and relative queries (p2c), by separate projections or by those of the content."""
        c2p, p2c = ("c2p" in self.pos_att_type, "p2c" in self.pos_att_type)
        embeddings = embeddings[: 2 * self.pos_ebd_size]
        key_proj: Any
        query_proj: Any
        key_proj, query_proj = (
            (self.key_proj, self.query_proj)
            if self.share_att_key
            else (getattr(self, "pos_key_proj", None), getattr(self, "pos_query_proj", None))
        )
        return (
            self.table(key_proj, embeddings, positions) if c2p else None,
            self.table(query_proj, embeddings, positions) if p2c else None,
        )


class RelattnDisentangledSelfAttentionV2(DisentangledAttentionV2, v2.DisentangledSelfAttention):
    """DeBERTa-v2's DisentangledSelfAttention on relattn."""


REPLACEMENTS = {
    v1.DebertaEncoder: RelattnDebertaEncoder,
    v1.DisentangledSelfAttention: RelattnDisentangledSelfAttention,
    v2.DebertaV2Encoder: RelattnDebertaV2Encoder,
    v2.DisentangledSelfAttention: RelattnDisentangledSelfAttentionV2,
}
"""The modules of transformers, and their replacements."""
