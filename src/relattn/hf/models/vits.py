"""VITS: Shaw's relative keys and values within a window; beyond it nothing is added."""

from __future__ import annotations

from jaxtyping import Float
from torch import Tensor
from transformers.models.vits.modeling_vits import VitsAttention

from relattn.equation.tables import OffsetTable
from relattn.equation.terms import ScoreTerms
from relattn.hf.heads import projected
from relattn.hf.interface import attend
from relattn.hf.masks import MaskStructure, as_structure
from relattn.hf.replacement import Replacement


class RelattnVitsAttention(Replacement, VitsAttention):
    """VitsAttention on relattn."""

    def forward(
        self,
        hidden_states: Float[Tensor, "B L width"],
        key_value_states: Tensor | None = None,
        attention_mask: MaskStructure | Tensor | None = None,
        output_attentions: bool = False,
    ) -> tuple[Tensor, Tensor | None]:
        """(output, attention weights if wanted), under the original's arguments; it is self-attention."""
        query, key, value = projected(hidden_states, (self.q_proj, self.k_proj, self.v_proj), self.head_dim)
        terms = None
        if self.window_size:
            keys, values = (OffsetTable(rows, -self.window_size, "zero") for rows in (self.emb_rel_k, self.emb_rel_v))
            terms = ScoreTerms(relative_keys=keys, relative_values=values)
        structure = as_structure(attention_mask, False, 0)
        dropout = self.dropout if self.training else 0.0
        output, weights = attend(self, query, key, value, structure, terms, self.scaling, dropout, output_attentions)
        return self.out_proj(output.flatten(2)), weights


REPLACEMENTS = {VitsAttention: RelattnVitsAttention}
"""The module of transformers, and its replacement."""
