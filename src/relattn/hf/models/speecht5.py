"""SpeechT5: Shaw's relative keys in the encoder, clipped; the decoder attends without positions."""

from __future__ import annotations

from typing import Any

from jaxtyping import Float
from torch import Tensor
from transformers.models.speecht5.modeling_speecht5 import (
    SpeechT5Attention,
    SpeechT5PreTrainedModel,
    SpeechT5RelativePositionalEncoding,
)

from relattn.equation.tables import OffsetTable
from relattn.equation.terms import ScoreTerms
from relattn.hf.caches import KeysAndValues, cached
from relattn.hf.called import rows_of
from relattn.hf.heads import projected
from relattn.hf.interface import attend
from relattn.hf.masks import MaskStructure, as_structure
from relattn.hf.replacement import Replacement


class RelattnSpeechT5RelativePositionalEncoding(Replacement, SpeechT5RelativePositionalEncoding):
    """SpeechT5RelativePositionalEncoding, which hands on its rows [2K, D] instead of one per pair, [L, L, D]."""

    stack = SpeechT5PreTrainedModel

    def forward(self, hidden_states: Tensor) -> Float[Tensor, "2K D"]:
        """The rows of the distances i - j = -K .. K - 1."""
        return rows_of(self.pe_k, 2 * self.max_length, hidden_states.device)


class RelattnSpeechT5Attention(Replacement, SpeechT5Attention):
    """SpeechT5Attention on relattn."""

    stack = SpeechT5PreTrainedModel

    def forward(
        self,
        hidden_states: Float[Tensor, "B Lq width"],
        key_value_states: Float[Tensor, "B Lk width"] | None = None,
        past_key_values: Any = None,
        attention_mask: MaskStructure | Tensor | None = None,
        position_bias: Float[Tensor, "2K D"] | None = None,
        output_attentions: bool = False,
        **kwargs: Any,
    ) -> tuple[Tensor, Tensor | None]:
        """(output, attention weights if wanted), under SpeechT5Attention's arguments."""
        (query,) = projected(hidden_states, (self.q_proj,), self.head_dim)

        def project() -> KeysAndValues:
            source = hidden_states if key_value_states is None else key_value_states
            key, value = projected(source, (self.k_proj, self.v_proj), self.head_dim)
            return key, value

        key, value = cached(past_key_values, self.layer_idx, key_value_states is not None, project)
        terms = None
        if position_bias is not None:  # d = j - i ascends where i - j descends
            rows, furthest = position_bias.flip(0).unsqueeze(0), position_bias.shape[0] // 2
            terms = ScoreTerms(relative_keys=OffsetTable(rows, 1 - furthest, "clamp"))
        structure = as_structure(attention_mask, False, 0)
        dropout = float(self.dropout or 0.0) if self.training else 0.0
        output, weights = attend(self, query, key, value, structure, terms, self.scaling, dropout, output_attentions)
        return self.out_proj(output.flatten(2)), weights


REPLACEMENTS = {
    SpeechT5RelativePositionalEncoding: RelattnSpeechT5RelativePositionalEncoding,
    SpeechT5Attention: RelattnSpeechT5Attention,
}
"""The module of transformers, and its replacement."""
