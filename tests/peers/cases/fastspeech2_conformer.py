"""FastSpeech2-Conformer's encoder."""

from typing import Any

import transformers as hf
from torch import Tensor, nn
from transformers.models.fastspeech2_conformer.modeling_fastspeech2_conformer import FastSpeech2ConformerEncoder

from tests.peers.cases.case import HEADS, WIDTH, Case, at_tokens, frames

SIZES = {"hidden_size": WIDTH, "encoder_layers": 2, "encoder_num_attention_heads": HEADS, "encoder_linear_units": 24,
         "encoder_kernel_size": 3}  # fmt: skip


class Speech(nn.Module):
    """The encoder, with a mask [B, L] as other encoders take it."""

    def __init__(self, encoder: nn.Module) -> None:
        super().__init__()
        self.encoder = encoder

    def forward(self, hidden_states: Tensor, attention_mask: Tensor, **how: Any) -> Any:
        return self.encoder(hidden_states, attention_mask.unsqueeze(1), **how)


def fastspeech2(**changes: Any) -> Case:
    def make(_: int) -> nn.Module:
        config = hf.FastSpeech2ConformerConfig(**SIZES, **changes)
        return Speech(FastSpeech2ConformerEncoder(config, config.encoder_config))

    biases = {"linear_k.bias": "linear_k.weight"}
    return Case(make, frames, 2, at_tokens, key_biases=biases, checkpoints=False)


CASES = {
    "fastspeech2_conformer": fastspeech2(),
    "fastspeech2_conformer_concatenated": fastspeech2(encoder_normalize_before=True, encoder_concat_after=True),
}
