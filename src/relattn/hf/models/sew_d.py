"""SEW-D: DeBERTa-v2's attention over speech."""

from __future__ import annotations

from typing import Any

from jaxtyping import Float
from torch import Tensor
from transformers.models.sew_d.modeling_sew_d import DisentangledSelfAttention, SEWDTransformerEncoder

from relattn.hf.interface import asks_for_weights
from relattn.hf.masks import MaskStructure
from relattn.hf.models.deberta import DisentangledAttentionV2, DisentangledEncoder


class RelattnSEWDTransformerEncoder(DisentangledEncoder, SEWDTransformerEncoder):
    """SEWDTransformerEncoder for attention on relattn."""

    by_name = False


class RelattnSEWDDisentangledSelfAttention(DisentangledAttentionV2, DisentangledSelfAttention):
    """SEW-D's DisentangledSelfAttention on relattn."""

    by_name = False

    def forward(
        self,
        hidden_states: Float[Tensor, "B Lk width"],
        attention_mask: MaskStructure | Tensor | None,
        query_states: Float[Tensor, "B Lq width"] | None = None,
        relative_pos: None = None,
        rel_embeddings: Float[Tensor, "2K width"] | None = None,
        **kwargs: Any,
    ) -> tuple[Tensor, Tensor | None]:
        """(output, attention weights if wanted), under the arguments that the original has here."""
        with_weights = asks_for_weights(self, kwargs)
        return super().forward(hidden_states, attention_mask, with_weights, query_states, relative_pos, rel_embeddings)

    def dropout_probability(self) -> float:
        """The probability with which a weight is dropped in training."""
        return self.dropout.drop_prob


REPLACEMENTS = {
    SEWDTransformerEncoder: RelattnSEWDTransformerEncoder,
    DisentangledSelfAttention: RelattnSEWDDisentangledSelfAttention,
}
"""The module of transformers, and its replacement."""
