"""WavLM: S = q . k / sqrt(D) + g_i b[bucket(d)], a gate g for each query and head, made from the layer's input."""

from __future__ import annotations

from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn
from transformers.models.wavlm.modeling_wavlm import WavLMAttention

from relattn.encodings.t5 import buckets
from relattn.equation.tables import OffsetTable, wide
from relattn.equation.terms import ScoreTerms
from relattn.errors import UnsupportedError
from relattn.hf.heads import projected
from relattn.hf.interface import asks_for_weights, attend
from relattn.hf.masks import MaskStructure
from relattn.hf.replacement import Replacement


class RelattnWavLMAttention(Replacement, WavLMAttention):
    """WavLMAttention on relattn: the gate is a relative query of width one, the bias its relative key.

    The first layer makes the biases, and the encoder hands them on to the others. Here they belong to the offsets
    -max_distance .. max_distance, [H, offsets], instead of [B * H, L, L].
    """

    stack = nn.ModuleList
    """The attribute in which both kinds of encoder keep their layers."""
    by_name = False

    def forward(
        self,
        hidden_states: Float[Tensor, "B L width"],
        attention_mask: Tensor | None = None,
        position_bias: Float[Tensor, "H offsets"] | None = None,
        index: int = 0,
        **kwargs: Any,
    ) -> tuple[Tensor, Tensor | None, Tensor]:
        """(output, attention weights if wanted, the biases of the offsets), under WavLMAttention's arguments.

        attention_mask [B, L]: 1 or True for frames of sound. The weights are the mean over all heads, as in the
        original.

        Raises UnsupportedError: when position_bias has a gradient and gradients are off, as in a layer that is
        checkpointed with use_reentrant=True.
        """
        if position_bias is not None and position_bias.requires_grad and not torch.is_grad_enabled():
            raise UnsupportedError(
                "position_bias: got a tensor with a gradient in a layer that runs without, as under checkpointing with "
                "use_reentrant=True, whose backward pass would never end, as in the original; call "
                "gradient_checkpointing_enable({'use_reentrant': False}), or detach position_bias"
            )
        if position_bias is None:
            position_bias = self._biases(hidden_states.device)
        query, key, value = projected(hidden_states, (self.q_proj, self.k_proj, self.v_proj), self.head_dim)
        terms = ScoreTerms(
            relative_query=self._gate(hidden_states) / self.scaling,
            relative_keys=OffsetTable(position_bias.unsqueeze(-1), -self.max_distance, "clamp"),
        )
        structure = MaskStructure(key_mask=None if attention_mask is None else attention_mask == 1)
        dropout = self.dropout if self.training else 0.0
        with_weights = asks_for_weights(self, kwargs)
        output, weights = attend(self, query, key, value, structure, terms, self.scaling, dropout, with_weights)
        if weights is not None:
            weights = weights.mean(dim=1, keepdim=True).expand_as(weights)
        return self.out_proj(output.flatten(2)), weights, position_bias

    def _biases(self, device: torch.device | None = None) -> Float[Tensor, "H offsets"]:
        """b[bucket(d)] of every offset that may have its own bucket."""
        offsets = torch.arange(-self.max_distance, self.max_distance + 1, device=device)
        places = buckets(offsets, self.num_buckets, self.max_distance, True)
        return wide(self.rel_attn_embed(places)).transpose(0, 1)

    def _gate(self, hidden_states: Float[Tensor, "B L width"]) -> Float[Tensor, "B H L 1"]:
        """g = a (c b - 1) + 2, with gates a and b from each head's features."""
        features = hidden_states.unflatten(-1, (self.num_heads, -1)).transpose(1, 2)
        gates = self.gru_rel_pos_linear(features).unflatten(-1, (2, 4)).sum(dim=-1)
        a, b = gates.sigmoid().chunk(2, dim=-1)
        return a * (b * self.gru_rel_pos_const - 1.0) + 2.0


REPLACEMENTS = {WavLMAttention: RelattnWavLMAttention}
"""The module of transformers, and its replacement."""
