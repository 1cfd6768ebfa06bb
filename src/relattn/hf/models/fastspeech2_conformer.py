"""FastSpeech2-Conformer: Transformer-XL's terms."""

from __future__ import annotations

from jaxtyping import Float
from torch import Tensor
from transformers.models.fastspeech2_conformer.modeling_fastspeech2_conformer import FastSpeech2ConformerAttention

from relattn.hf.heads import projected
from relattn.hf.interface import attend
from relattn.hf.masks import MaskStructure
from relattn.hf.models.conformer import transformer_xl_terms
from relattn.hf.replacement import Replacement


class RelattnFastSpeech2ConformerAttention(Replacement, FastSpeech2ConformerAttention):
    """FastSpeech2ConformerAttention on relattn."""

    by_name = False

    def forward(
        self,
        hidden_states: Float[Tensor, "B L width"],
        attention_mask: Float[Tensor, "B 1 L"] | None = None,
        pos_emb: Float[Tensor, "1 2L-1 width"] | None = None,
        output_attentions: bool | None = False,
    ) -> tuple[Tensor, Tensor | None]:
        """(output, attention weights if wanted), under FastSpeech2ConformerAttention's arguments."""
        assert pos_emb is not None
        query, key, value = projected(hidden_states, (self.linear_q, self.linear_k, self.linear_v), self.head_dim)
        terms = transformer_xl_terms(query, self.pos_bias_u, self.pos_bias_v, self.linear_pos(pos_emb[0]))
        mask = None if attention_mask is None else attention_mask.ne(0).reshape(hidden_states.shape[:2])
        dropout = self.dropout.p if self.training else 0.0
        output, weights = attend(
            self, query, key, value, MaskStructure(key_mask=mask), terms, self.dim_key**-0.5, dropout,
            bool(output_attentions),
        )  # fmt: skip
        return self.linear_out(output.flatten(2)), weights


REPLACEMENTS = {FastSpeech2ConformerAttention: RelattnFastSpeech2ConformerAttention}
"""The module of transformers, and its replacement."""
