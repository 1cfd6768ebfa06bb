"""Switch Transformers, Pop2Piano and Pix2Struct's text: T5's attention in models of their own."""

from __future__ import annotations

from typing import Any

from jaxtyping import Float
from torch import Tensor
from transformers.models.pix2struct.modeling_pix2struct import Pix2StructTextAttention, Pix2StructTextModel
from transformers.models.pop2piano.modeling_pop2piano import Pop2PianoAttention, Pop2PianoStack
from transformers.models.switch_transformers.modeling_switch_transformers import (
    SwitchTransformersAttention,
    SwitchTransformersStack,
)

from relattn.hf.masks import MaskStructure
from relattn.hf.models.t5 import SharedBias


class RelattnSwitchTransformersAttention(SharedBias, SwitchTransformersAttention):
    """SwitchTransformersAttention on relattn: its encoder adds the mask of keys, [B, 1, 1, L], as numbers."""

    stack = SwitchTransformersStack

    def forward(
        self,
        hidden_states: Float[Tensor, "B Lq d_model"],
        mask: MaskStructure | Tensor | None = None,
        key_value_states: Float[Tensor, "B Lk d_model"] | None = None,
        position_bias: Float[Tensor, "num_buckets H"] | None = None,
        past_key_values: Any = None,
        **kwargs: Any,
    ) -> tuple[Tensor, Tensor | None, Tensor | None]:
        """As SharedBias's."""
        if isinstance(mask, Tensor) and not self.is_decoder:
            mask = MaskStructure(key_mask=mask[:, 0, 0] == 0.0)
        return super().forward(hidden_states, mask, key_value_states, position_bias, past_key_values, **kwargs)


class RelattnPop2PianoAttention(SharedBias, Pop2PianoAttention):
    """Pop2PianoAttention on relattn."""

    stack = Pop2PianoStack


class RelattnPix2StructTextAttention(SharedBias, Pix2StructTextAttention):
    """Pix2StructTextAttention on relattn: a decoder's buckets, and other names for the projections."""

    stack = Pix2StructTextModel
    projections = ("query", "key", "value", "output")


REPLACEMENTS = {
    SwitchTransformersAttention: RelattnSwitchTransformersAttention,
    Pop2PianoAttention: RelattnPop2PianoAttention,
    Pix2StructTextAttention: RelattnPix2StructTextAttention,
}
"""The module of transformers, and its replacement."""
