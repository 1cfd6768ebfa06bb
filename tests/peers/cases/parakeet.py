"""Parakeet's encoder, and Nemotron-ASR-Streaming's; frames are as many as features, so that one mask serves both."""

from typing import Any

import torch
from torch import Tensor, nn

from tests.peers.cases.case import BATCH, HEADS, WIDTH, Case, at_tokens, frames, theirs

MELS = 4
ENCODER = {"hidden_size": WIDTH, "num_hidden_layers": 2, "num_attention_heads": HEADS, "intermediate_size": 24,
           "conv_kernel_size": 3, "subsampling_factor": 2, "subsampling_conv_stride": 1, "subsampling_conv_channels": 2,
           "num_mel_bins": MELS, "attention_dropout": 0.0, "activation_dropout": 0.0}  # fmt: skip


def features(length: int) -> dict[str, Tensor]:
    return {
        "input_features": torch.randn(BATCH, length, MELS), "attention_mask": frames(length)["attention_mask"],
    }  # fmt: skip


def encoder(family: str, kind: str, **changes: Any) -> Case:
    def make(_: int) -> nn.Module:
        model, config = theirs(family, f"{kind}Encoder", f"{kind}EncoderConfig")
        return model(config(**ENCODER, **changes))

    biases = {"k_proj.bias": "k_proj.weight"} if changes.get("attention_bias", True) else {}
    return Case(
        make, features, 3, at_tokens, features=("input_features",), key_biases=biases,
        attentions=family == "parakeet",
    )  # fmt: skip


def nemotron(**changes: Any) -> Case:
    """Its eager attention, the only one that returns weights, hides the pairs that attend: tests/hf/test_speech.py."""
    return encoder("nemotron_asr_streaming", "NemotronAsrStreaming", **changes)


CASES = {
    "parakeet": encoder("parakeet", "Parakeet"),
    "parakeet_without_biases": encoder("parakeet", "Parakeet", attention_bias=False, scale_input=False),
    "nemotron_asr_streaming": nemotron(sliding_window=6, default_num_lookahead_tokens=2),
    "nemotron_asr_streaming_without_lookahead": nemotron(sliding_window=4, default_num_lookahead_tokens=0),
}
