"""Wav2Vec2-Conformer, Wav2Vec2-Bert and both SeamlessM4T's speech encoders: Transformer-XL's terms, or Shaw's keys."""

from __future__ import annotations

from typing import Any

from jaxtyping import Bool, Float
from torch import Tensor
from transformers.models.seamless_m4t.modeling_seamless_m4t import SeamlessM4TConformerSelfAttention
from transformers.models.seamless_m4t_v2.modeling_seamless_m4t_v2 import (
    SeamlessM4Tv2ConformerEncoder,
    SeamlessM4Tv2ConformerSelfAttention,
)
from transformers.models.wav2vec2_bert.modeling_wav2vec2_bert import Wav2Vec2BertSelfAttention
from transformers.models.wav2vec2_conformer.modeling_wav2vec2_conformer import Wav2Vec2ConformerSelfAttention

from relattn.equation.tables import OffsetTable
from relattn.equation.terms import ScoreTerms
from relattn.hf.called import rows_of
from relattn.hf.chunks import Chunks, placed
from relattn.hf.heads import projected
from relattn.hf.interface import asks_for_weights, attend
from relattn.hf.masks import MaskStructure, as_structure
from relattn.hf.replacement import Replacement


class _ConformerAttention(Replacement):
    """The common computation of all four, by `position_embeddings_type`."""

    needs = ("scaling",)

    def forward(
        self: Any,
        hidden_states: Float[Tensor, "B L width"],
        attention_mask: MaskStructure | Tensor | None = None,
        relative_position_embeddings: Tensor | None = None,
        **kwargs: Any,
    ) -> tuple[Tensor, Tensor | None]:
        """(output, attention weights if wanted), under the original's arguments.

        Raises ValueError: when the encoding needs relative_position_embeddings and they are missing.
        """
        kind, sinusoids = self.position_embeddings_type, relative_position_embeddings
        if kind in ("relative", "rotary") and sinusoids is None:
            raise ValueError(
                f"relative_position_embeddings: got None with position_embeddings_type={kind!r}; pass those of the "
                "encoder's embed_positions"
            )
        source = hidden_states
        if kind == "rotary":  # these models rotate before they project
            source = self._apply_rotary_embedding(hidden_states, sinusoids)
        query, key = projected(source, (self.linear_q, self.linear_k), self.head_size)
        (value,) = projected(hidden_states, (self.linear_v,), self.head_size)
        terms = None
        if kind == "relative":
            assert sinusoids is not None
            rows = self.linear_pos(sinusoids[0])
            terms = transformer_xl_terms(query, self.pos_bias_u, self.pos_bias_v, rows)
        elif kind == "relative_key":
            left, right = self.left_max_position_embeddings, self.right_max_position_embeddings
            rows = rows_of(self.distance_embedding, left + right + 1, query.device)
            terms = ScoreTerms(relative_keys=OffsetTable(rows.unsqueeze(0), -left, "clamp"))
        structure = as_structure(attention_mask, False, 0)
        dropout = self.dropout.p if self.training else 0.0
        with_weights = asks_for_weights(self, kwargs)
        terms = placed(terms, structure)
        output, weights = attend(self, query, key, value, structure, terms, self.scaling, dropout, with_weights)
        return self.linear_out(output.flatten(2)), weights


def transformer_xl_terms(
    query: Float[Tensor, "B H L D"],
    content_bias: Float[Tensor, "H D"],
    position_bias: Float[Tensor, "H D"],
    listed: Float[Tensor, "R HD"],
) -> ScoreTerms:
    """q + u, q + v and W R: projected rows of R offsets. The encoder lists them from the most distant past on."""
    rows = listed.unflatten(-1, position_bias.shape).transpose(0, 1)
    return ScoreTerms(
        query=query + content_bias.unsqueeze(1),
        relative_query=query + position_bias.unsqueeze(1),
        relative_keys=OffsetTable(rows, -(rows.shape[1] // 2), "error"),
    )


class RelattnWav2Vec2ConformerSelfAttention(_ConformerAttention, Wav2Vec2ConformerSelfAttention):
    """Wav2Vec2ConformerSelfAttention on relattn."""


class RelattnWav2Vec2BertSelfAttention(_ConformerAttention, Wav2Vec2BertSelfAttention):
    """Wav2Vec2BertSelfAttention on relattn."""


class RelattnSeamlessM4TConformerSelfAttention(_ConformerAttention, SeamlessM4TConformerSelfAttention):
    """SeamlessM4TConformerSelfAttention on relattn."""


class RelattnSeamlessM4Tv2ConformerSelfAttention(_ConformerAttention, SeamlessM4Tv2ConformerSelfAttention):
    """SeamlessM4Tv2ConformerSelfAttention on relattn."""


class RelattnSeamlessM4Tv2ConformerEncoder(Replacement, SeamlessM4Tv2ConformerEncoder):
    """SeamlessM4Tv2ConformerEncoder, which hands its layers the chunks of the speech instead of pairs."""

    def _apply_chunk_attention(
        self, attention_mask: Bool[Tensor, "B L"] | None, hidden_states: Float[Tensor, "B L width"]
    ) -> Chunks | Tensor | None:
        size, before = self.config.speech_encoder_chunk_size, self.config.speech_encoder_left_chunk_num
        length = hidden_states.shape[1]
        if length <= size:
            return attention_mask
        return Chunks(
            key_mask=None if attention_mask is None else attention_mask.bool(),
            size=size,
            left=before if before >= 0 else None,
            lengths=(length, length),
        )


REPLACEMENTS = {
    Wav2Vec2ConformerSelfAttention: RelattnWav2Vec2ConformerSelfAttention,
    Wav2Vec2BertSelfAttention: RelattnWav2Vec2BertSelfAttention,
    SeamlessM4TConformerSelfAttention: RelattnSeamlessM4TConformerSelfAttention,
    SeamlessM4Tv2ConformerSelfAttention: RelattnSeamlessM4Tv2ConformerSelfAttention,
    SeamlessM4Tv2ConformerEncoder: RelattnSeamlessM4Tv2ConformerEncoder,
}
"""The modules of transformers, and their replacements."""
