"""LASR's encoder, which makes a token of every four frames."""

from typing import Any

import torch
import transformers as hf
from torch import Tensor, nn

from tests.peers.cases.case import BATCH, HEADS, WIDTH, Case

MELS = 4
SETTINGS = {"hidden_size": WIDTH, "num_hidden_layers": 2, "num_attention_heads": HEADS, "intermediate_size": 24,
            "conv_kernel_size": 5, "subsampling_conv_channels": 8, "num_mel_bins": MELS,
            "activation_dropout": 0.0, "attention_dropout": 0.0}  # fmt: skip


def make(_: int) -> nn.Module:
    return hf.LasrEncoder(hf.LasrEncoderConfig(**SETTINGS))


def speech(length: int) -> dict[str, Tensor]:
    frames = 4 * length + 9
    mask = torch.ones(BATCH, frames, dtype=torch.long)
    mask[0, frames - 14 :] = 0
    return {"input_features": torch.randn(BATCH, frames, MELS), "attention_mask": mask}


def at_speech(output: Any, inputs: dict[str, Tensor]) -> Tensor:
    """The tokens before the padding, of which the first row has at least three fewer."""
    states = output.last_hidden_state
    return torch.cat([states[0, : states.shape[1] - 4], states[1]])


CASES = {
    "lasr": Case(
        make, speech, 2, at_speech, features=("input_features",), attentions=False, dropout=False,
    )
}  # fmt: skip
