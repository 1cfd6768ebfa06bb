"""Granite-Speech, its Plus and its fifth version: Shaw's relative keys in separate blocks of frames."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn
from transformers.models.granite_speech.modeling_granite_speech import GraniteSpeechConformerAttention
from transformers.models.granite_speech5.modeling_granite_speech5 import GraniteSpeech5EncoderAttention
from transformers.models.granite_speech_plus.modeling_granite_speech_plus import GraniteSpeechPlusConformerAttention

from relattn.equation.tables import OffsetTable
from relattn.equation.terms import ScoreTerms
from relattn.hf.interface import attend
from relattn.hf.masks import MaskStructure
from relattn.hf.replacement import Replacement


class _ConformerAttention(Replacement):
    """The common part of Granite-Speech and its Plus: an own layer norm, no dropout of weights, no padding."""

    by_name = False

    def forward(
        self: Any, hidden_states: Float[Tensor, "B L width"], attention_dists: Int[Tensor, "C C"]
    ) -> Float[Tensor, "B L width"]:
        """The output, under the original's arguments."""
        states = self.pre_norm(hidden_states)
        key, value = self.to_kv(states).chunk(2, dim=-1)
        output = _in_blocks(
            self, self.to_q(states), key, value, self.dim_head, self.rel_pos_emb, attention_dists, None, self.scale, 0.0
        )
        return self.dropout(self.to_out(output))


class RelattnGraniteSpeechConformerAttention(_ConformerAttention, GraniteSpeechConformerAttention):
    """GraniteSpeechConformerAttention on relattn."""


class RelattnGraniteSpeechPlusConformerAttention(_ConformerAttention, GraniteSpeechPlusConformerAttention):
    """GraniteSpeechPlusConformerAttention on relattn."""


class RelattnGraniteSpeech5EncoderAttention(Replacement, GraniteSpeech5EncoderAttention):
    """GraniteSpeech5EncoderAttention on relattn."""

    by_name = False

    def forward(
        self,
        hidden_states: Float[Tensor, "B L width"],
        position_embeddings: Int[Tensor, "C C"],
        attention_mask: Bool[Tensor, "B L"] | None = None,
        **kwargs: Any,
    ) -> tuple[Tensor, None]:
        """(output, None), under the original's arguments; it does not return its weights either."""
        query, key, value = (projection(hidden_states) for projection in (self.q_proj, self.k_proj, self.v_proj))
        dropout = self.attention_dropout if self.training else 0.0
        output = _in_blocks(
            self, query, key, value, self.head_dim, self.rel_pos_emb, position_embeddings, attention_mask,
            self.scaling, dropout,
        )  # fmt: skip
        return self.o_proj(output), None


def _in_blocks(
    module: Any,
    query: Float[Tensor, "B L HD"],
    key: Float[Tensor, "B L HD"],
    value: Float[Tensor, "B L HD"],
    head_dim: int,
    embedding: nn.Module,
    rows: Int[Tensor, "C C"],
    mask: Bool[Tensor, "B L"] | None,
    scale: float,
    dropout: float,
) -> Float[Tensor, "B L HD"]:
    """Attention within blocks of C frames, each an element of the batch; rows[i, j]: the row of query i and key j."""
    (batch, length, _), size = query.shape, module.context_size
    lacking = -length % size
    if lacking and mask is None:
        mask = torch.ones(batch, length, dtype=torch.bool, device=query.device)
    folded = (
        F.pad(features, (0, 0, 0, lacking)).unflatten(1, (-1, size)).flatten(0, 1).unflatten(-1, (-1, head_dim))
        for features in (query, key, value)
    )
    query, key, value = (features.transpose(1, 2) for features in folded)
    key_mask = None if mask is None else F.pad(mask, (0, lacking)).reshape(-1, size)
    by_offset = torch.cat([rows[1:, 0].flip(0), rows[0]])  # the first key, seen from the last query on; then the others
    terms = ScoreTerms(relative_keys=OffsetTable(embedding(by_offset).unsqueeze(0), 1 - size, "error"))
    output, _ = attend(module, query, key, value, MaskStructure(key_mask=key_mask), terms, scale, dropout, False)
    return output.flatten(2).reshape(batch, length + lacking, -1)[:, :length]


REPLACEMENTS = {
    GraniteSpeechConformerAttention: RelattnGraniteSpeechConformerAttention,
    GraniteSpeechPlusConformerAttention: RelattnGraniteSpeechPlusConformerAttention,
    GraniteSpeech5EncoderAttention: RelattnGraniteSpeech5EncoderAttention,
}
"""The modules of transformers, and their replacements."""
