"""Swin: S = q . k / sqrt(D) + b[dy, dx] in windows, with the table in a module of its own."""

from __future__ import annotations

from typing import Any

from jaxtyping import Float
from torch import Tensor
from transformers.models.swin.modeling_swin import SwinAttention, SwinLayer, SwinRelativePositionBias

from relattn.hf.grids import grid_terms
from relattn.hf.heads import projected
from relattn.hf.interface import asks_for_weights, attend
from relattn.hf.masks import MaskStructure
from relattn.hf.models.swin import WindowLayer, of_windows
from relattn.hf.replacement import Replacement


class RelattnSwinLayer(WindowLayer, SwinLayer):
    """SwinLayer for attention on relattn."""


class RelattnSwinRelativePositionBias(Replacement, SwinRelativePositionBias):
    """SwinRelativePositionBias, which gives attention on relattn its table, and any other the biases of the pairs."""

    by_name = False

    def forward(self, pairs: bool = True) -> Float[Tensor, "1 H L L"] | Float[Tensor, "rows H"]:
        """The biases of the pairs, or the table."""
        return super().forward() if pairs else self.relative_position_bias_table


class RelattnSwinAttention(Replacement, SwinAttention):
    """SwinAttention on relattn."""

    by_name = False
    needs = ("q_proj",)

    @staticmethod
    def cannot(module: Any) -> str | None:
        """Another module than its own may not give its table."""
        kind = type(module.relative_position_bias)
        return None if kind is SwinRelativePositionBias else f"its bias comes from a {kind.__name__}"

    def forward(
        self,
        hidden_states: Float[Tensor, "B L width"],
        attention_mask: MaskStructure | Tensor | None = None,
        **kwargs: Any,
    ) -> tuple[Tensor, Tensor | None]:
        """(output, attention weights if wanted), under SwinAttention's arguments."""
        query, key, value = projected(hidden_states, (self.q_proj, self.k_proj, self.v_proj), self.head_dim)
        height, width = self.relative_position_bias.window_size
        terms = grid_terms(self.relative_position_bias(pairs=False), (height, width))
        structure = of_windows(attention_mask, (height, width), query)
        dropout = self.attention_dropout if self.training else 0.0
        with_weights = asks_for_weights(self, kwargs)
        output, weights = attend(self, query, key, value, structure, terms, self.scaling, dropout, with_weights)
        return self.o_proj(output.flatten(2)), weights


REPLACEMENTS = {
    SwinLayer: RelattnSwinLayer,
    SwinAttention: RelattnSwinAttention,
    SwinRelativePositionBias: RelattnSwinRelativePositionBias,
}
"""The modules of transformers, and their replacements."""
