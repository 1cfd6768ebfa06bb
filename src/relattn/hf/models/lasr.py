"""LASR: rotated queries and keys; its attention runs by name. Its convolutions read the attention's mask, too."""

from __future__ import annotations

from jaxtyping import Float
from torch import Tensor
from transformers.models.lasr.modeling_lasr import LasrEncoderConvolutionModule

from relattn.hf.masks import MaskStructure
from relattn.hf.replacement import Replacement


class RelattnLasrEncoderConvolutionModule(Replacement, LasrEncoderConvolutionModule):
    """LasrEncoderConvolutionModule, which leaves out the frames that no frame attends to: here the padding."""

    def forward(
        self, hidden_states: Float[Tensor, "B L width"], attention_mask: MaskStructure | Tensor | None = None
    ) -> Float[Tensor, "B L width"]:
        """As the original's, with a mask of frames [B, 1, 1, L] in place of a mask of pairs."""
        if isinstance(attention_mask, MaskStructure):
            frames = attention_mask.key_mask
            attention_mask = None if frames is None else frames[:, None, None]
        return super().forward(hidden_states, attention_mask)


REPLACEMENTS = {LasrEncoderConvolutionModule: RelattnLasrEncoderConvolutionModule}
"""The module of transformers, and its replacement."""
