"""Parakeet: Transformer-XL's terms. Canary, Cohere-ASR and Nemotron-H-Omni have its encoder, too."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float
from torch import Tensor
from transformers.models.parakeet.modeling_parakeet import (
    ParakeetEncoder,
    ParakeetEncoderAttention,
    ParakeetEncoderModelOutput,
)
from transformers.utils.generic import merge_with_config_defaults
from transformers.utils.output_capturing import capture_outputs

from relattn.hf.chunks import placed
from relattn.hf.heads import projected
from relattn.hf.interface import asks_for_weights, attend
from relattn.hf.masks import MaskStructure
from relattn.hf.models.conformer import transformer_xl_terms
from relattn.hf.replacement import Replacement
from relattn.hf.whole_model import WholeModel


class RelattnParakeetEncoderAttention(Replacement, ParakeetEncoderAttention):
    """ParakeetEncoderAttention on relattn."""

    stack = ParakeetEncoder
    by_name = False

    def forward(
        self,
        hidden_states: Float[Tensor, "B L width"],
        position_embeddings: Float[Tensor, "1 2L-1 width"],
        attention_mask: Bool[Tensor, "B 1 #L L"] | None = None,
        **kwargs: Any,
    ) -> tuple[Tensor, Tensor | None]:
        """(output, attention weights if wanted), under ParakeetEncoderAttention's arguments."""
        structure = MaskStructure()
        if attention_mask is not None:
            mask = attention_mask.bool()
            structure = MaskStructure(key_mask=mask[:, 0, 0]) if mask.shape[2] == 1 else MaskStructure(attn_mask=mask)
        return relative_attention_of(self, hidden_states, position_embeddings, structure, None, kwargs)


def relative_attention_of(
    module: Any,
    hidden_states: Float[Tensor, "B Lq width"],
    sinusoids: Float[Tensor, "1 2Lk-1 width"],
    structure: MaskStructure,
    cache: Any,
    kwargs: dict[str, Any],
) -> tuple[Tensor, Tensor | None]:
    """Project, append to the cache, attend, project."""
    query, key, value = projected(hidden_states, (module.q_proj, module.k_proj, module.v_proj), module.head_dim)
    if cache is not None:
        key, value = cache.update(key, value, module.layer_idx)
    rows = module.relative_k_proj(sinusoids[0])
    terms = placed(transformer_xl_terms(query, module.bias_u, module.bias_v, rows), structure)
    dropout = module.attention_dropout if module.training else 0.0
    with_weights = asks_for_weights(module, kwargs)
    output, weights = attend(module, query, key, value, structure, terms, module.scaling, dropout, with_weights)
    return module.o_proj(output.flatten(2)), weights


class RelattnParakeetEncoder(WholeModel, ParakeetEncoder):
    """ParakeetEncoder, whose layers get a mask of frames, [B, 1, 1, L], instead of a mask of pairs.

    In the original a padding frame attends to padding and speech; here only to the speech. Nothing reads its output.
    Dropout of the positions is drawn once for a batch.
    """

    by_name = False
    needs = ("_get_output_attention_mask",)

    @merge_with_config_defaults
    @capture_outputs
    def forward(
        self,
        input_features: Float[Tensor, "B features mels"],
        attention_mask: Tensor | None = None,
        output_attention_mask: bool = True,
        **kwargs: Any,
    ) -> ParakeetEncoderModelOutput:
        """The frames' states and a mask of speech frames, under ParakeetEncoder's arguments."""
        states = self.subsampling(input_features, attention_mask) * self.input_scale
        speech = None
        if attention_mask is not None:
            speech = self._get_output_attention_mask(attention_mask, target_length=states.shape[1])
            kwargs["attention_mask"] = speech[:, None, None, :]
        states = through_layers(self, states, self.encode_positions(states[:1]), kwargs)
        shown = speech.int() if speech is not None and output_attention_mask else None
        return ParakeetEncoderModelOutput(last_hidden_state=states, attention_mask=shown)  # pyright: ignore[reportArgumentType]


def through_layers(
    encoder: Any,
    states: Float[Tensor, "B L width"],
    positions: Float[Tensor, "1 R width"],
    layer_arguments: dict[str, Any],
) -> Float[Tensor, "B L width"]:
    """The encoder's layers one after the other, each left out with the probability `layerdrop` in training."""
    states = F.dropout(states, encoder.dropout, encoder.training)
    positions = F.dropout(positions, encoder.dropout_positions, encoder.training)
    for layer in encoder.layers:
        drops = encoder.training and encoder.layerdrop > 0.0 and torch.rand([]) < encoder.layerdrop
        if not drops:
            states = layer(states, position_embeddings=positions, **layer_arguments)
    return states


REPLACEMENTS = {
    ParakeetEncoderAttention: RelattnParakeetEncoderAttention,
    ParakeetEncoder: RelattnParakeetEncoder,
}
"""The modules of transformers, and their replacements."""
