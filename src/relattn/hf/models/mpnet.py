"""MPNet: S = q . k / sqrt(D) + b[bucket(d)], one bias for all layers."""

from __future__ import annotations

from typing import Any

from jaxtyping import Float
from torch import Tensor
from transformers.models.mpnet.modeling_mpnet import MPNetEncoder, MPNetSelfAttention

from relattn.encodings.t5 import bias_table
from relattn.equation.terms import ScoreTerms
from relattn.errors import UnsupportedError
from relattn.hf.called import rows_of
from relattn.hf.heads import projected
from relattn.hf.interface import attend
from relattn.hf.masks import MaskStructure, as_structure
from relattn.hf.replacement import Replacement
from relattn.positions.positions import Span

BUCKETS, FURTHEST = 32, 128
"""MPNet's rule, for every configuration: the number of buckets, and the distance at which the last one begins."""


class RelattnMPNetEncoder(Replacement, MPNetEncoder):
    """MPNetEncoder, which hands its layers the biases of the buckets, [32, H], instead of [B, H, L, L]."""

    @staticmethod
    def cannot(module: Any) -> str | None:
        """A smaller table lacks buckets that its own rule gives."""
        rows = module.config.relative_attention_num_buckets
        return (
            f"relative_attention_num_buckets={rows} is below the {BUCKETS} of MPNet's rule" if rows < BUCKETS else None
        )

    def compute_position_bias(
        self, x: Tensor, position_ids: Tensor | None = None, num_buckets: int = BUCKETS
    ) -> Float[Tensor, "num_buckets H"]:
        """The biases of the buckets.

        Raises UnsupportedError: for position_ids, which the model never gives.
        """
        if position_ids is not None:
            raise UnsupportedError(
                "position_ids: got a tensor; relattn counts offsets from the tokens' places; leave it out, or call "
                "relattn.hf.unpatch"
            )
        return rows_of(self.relative_attention_bias, num_buckets, x.device)


class RelattnMPNetSelfAttention(Replacement, MPNetSelfAttention):
    """MPNetSelfAttention on relattn."""

    stack = MPNetEncoder

    def forward(
        self,
        hidden_states: Float[Tensor, "B L width"],
        attention_mask: MaskStructure | Tensor | None = None,
        position_bias: Float[Tensor, "num_buckets H"] | None = None,
        output_attentions: bool = False,
        **kwargs: Any,
    ) -> tuple[Tensor, ...]:
        """(output, attention weights if wanted), under MPNetSelfAttention's arguments."""
        query, key, value = projected(hidden_states, (self.q, self.k, self.v), self.attention_head_size)
        terms = None
        if position_bias is not None:
            terms = ScoreTerms(bias=bias_table(position_bias, FURTHEST, True, Span(-FURTHEST, 2 * FURTHEST + 1)))
        structure = as_structure(attention_mask, False, 0)
        dropout = self.dropout.p if self.training else 0.0
        output, weights = attend(self, query, key, value, structure, terms, None, dropout, output_attentions)
        output = self.o(output.flatten(2))
        return (output,) if weights is None else (output, weights)


REPLACEMENTS = {MPNetEncoder: RelattnMPNetEncoder, MPNetSelfAttention: RelattnMPNetSelfAttention}
"""The module of transformers, and its replacement."""
