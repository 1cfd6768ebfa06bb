"""Phi-4-Multimodal's speech encoder: b[d] by clipped offset, and 1 more for the frames of its mask of chunks."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int
from torch import Tensor
from transformers.models.phi4_multimodal.modeling_phi4_multimodal import (
    Phi4MultimodalAudioAttention,
    Phi4MultimodalAudioModel,
    Phi4MultimodalAudioRelativeAttentionBias,
)

from relattn.equation.tables import OffsetTable
from relattn.equation.terms import ScoreTerms
from relattn.hf.called import rows_of
from relattn.hf.heads import projected
from relattn.hf.interface import attend
from relattn.hf.masks import MaskStructure, as_structure
from relattn.hf.replacement import Replacement
from relattn.hf.whole_model import WholeModel

PIECE = 500
"""Longer speech is cut into pieces of this many frames, which do not see each other."""
CHUNKS = "chunks"
"""The axis of the chunks' numbers."""


class LayerMask(NamedTuple):
    """The encoder hands this to its layers instead of a bias of pairs."""

    structure: MaskStructure
    terms: ScoreTerms


class RelattnPhi4MultimodalAudioRelativeAttentionBias(Replacement, Phi4MultimodalAudioRelativeAttentionBias):
    """Phi4MultimodalAudioRelativeAttentionBias, which makes one row per offset instead of one per pair."""

    stack = Phi4MultimodalAudioModel
    by_name = False

    def forward(self, x: Float[Tensor, "B L width"]) -> OffsetTable:  # pyright: ignore[reportIncompatibleMethodOverride]
        """b [H, 2 max_distance], clipped; or by distance, and then refused where the original has no row."""
        furthest = self.max_distance
        if not self.symmetric:
            return OffsetTable(rows_of(self.bias_values, self.num_buckets, x.device).t(), -furthest, "clamp")
        distances = torch.arange(1 - furthest, furthest, device=x.device).abs()
        return OffsetTable(self.bias_values(distances).t(), 1 - furthest, "error")


class RelattnPhi4MultimodalAudioAttention(Replacement, Phi4MultimodalAudioAttention):
    """Phi4MultimodalAudioAttention on relattn."""

    stack = Phi4MultimodalAudioModel
    by_name = False

    def forward(
        self, hidden_states: Float[Tensor, "B L width"], attention_mask: LayerMask | Tensor, **kwargs: Any
    ) -> Float[Tensor, "B L width"]:
        """The output, under the original's arguments."""
        if isinstance(attention_mask, LayerMask):
            structure, terms = attention_mask
        else:
            structure, terms = as_structure(attention_mask, True, 0), None
        query, key, value = projected(hidden_states, (self.q_proj, self.k_proj, self.v_proj), self.head_dim)
        dropout = self.attention_dropout if self.training else 0.0
        output, _ = attend(self, query, key, value, structure, terms, self.scaling, dropout, False)
        return self.o_proj(output.flatten(2))


class RelattnPhi4MultimodalAudioModel(WholeModel, Phi4MultimodalAudioModel):
    """Phi4MultimodalAudioModel, whose layers get rows of a bias and numbers of chunks instead of pairs.

    Its boolean masks are added to the scores as numbers, as in the original: nothing is hidden by them.
    """

    by_name = False

    def forward(
        self, hidden_states: Float[Tensor, "B features mels"], mask: Bool[Tensor, "B features"] | None, **kwargs: Any
    ) -> Float[Tensor, "B L width"]:
        """The frames' states, under Phi4MultimodalAudioModel's arguments."""
        states, speech = self.embed(self.encoder_embedding(hidden_states), mask)
        speech = None if speech is None else speech.squeeze(1)
        (batch, length, _), numbers = states.shape, self.chunk_numbers(states.shape[1])
        if length > PIECE:
            lacking = -length % PIECE
            states = F.pad(states, (0, 0, 0, lacking)).unflatten(1, (-1, PIECE)).flatten(0, 1)
            speech = None if speech is None else F.pad(speech, (0, lacking)).reshape(-1, PIECE)
            numbers = self.chunk_numbers(PIECE)
        layer_mask = self.layer_mask(numbers.to(states.device), speech, self.relative_attention_bias_layer(states))
        for layer in self.encoders:
            states = layer(states, layer_mask)
        return states.reshape(batch, -1, states.shape[-1])[:, :length]

    def chunk_numbers(self, length: int) -> Int[Tensor, "L"]:
        """The number of each frame's chunk. In training the first chunk is the short one half of the time.

        It is drawn as in the original, by NumPy; without a size all frames are in one chunk.
        """
        from_the_end = self.training and np.random.rand() > 0.5
        size = self.config.chunk_size if self.config.chunk_size > 0 else length
        return (torch.arange(length) + (-length % size if from_the_end else 0)) // size

    def layer_mask(self, numbers: Int[Tensor, "L"], speech: Bool[Tensor, "B L"] | None, bias: OffsetTable) -> LayerMask:
        """b[d], and on the axis of chunks 1 for a key in the query's chunk or in the `left_chunk` chunks before it.

        Frames of padding stand before all of these chunks.
        """
        left = self.config.left_chunk
        keys = numbers if speech is None else torch.where(speech, numbers, -left - 1)
        ones = OffsetTable(bias.values.new_ones(1, left + 1), -left, "zero")
        structure = MaskStructure(
            query_position={"sequence": 0, CHUNKS: numbers}, key_position={"sequence": 0, CHUNKS: keys}
        )
        return LayerMask(structure, ScoreTerms(bias=bias) + ScoreTerms(bias=ones).on(CHUNKS))


REPLACEMENTS = {
    Phi4MultimodalAudioAttention: RelattnPhi4MultimodalAudioAttention,
    Phi4MultimodalAudioModel: RelattnPhi4MultimodalAudioModel,
    Phi4MultimodalAudioRelativeAttentionBias: RelattnPhi4MultimodalAudioRelativeAttentionBias,
}
"""The modules of transformers, and their replacements."""
