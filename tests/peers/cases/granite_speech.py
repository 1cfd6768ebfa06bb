"""The encoders of Granite-Speech, Granite-Speech-Plus and Granite-Speech 5."""

from typing import Any

import torch
from torch import Tensor, nn

from tests.peers.cases.case import BATCH, HEADS, VOCABULARY, WIDTH, Case, at_tokens, frames, theirs, whole

MELS = 12
ENCODER = {"input_dim": MELS, "num_layers": 2, "hidden_dim": WIDTH, "feedforward_mult": 2, "num_heads": HEADS,
           "output_dim": 6, "context_size": 4, "max_pos_emb": 6, "conv_kernel_size": 3}  # fmt: skip
FIFTH = {"vocab_size": VOCABULARY, "hidden_size": WIDTH, "intermediate_size": 24, "num_hidden_layers": 2,
         "num_attention_heads": HEADS, "num_mel_bins": MELS // 4, "context_size": 4, "max_position_embeddings": 6,
         "conv_kernel_size": 3}  # fmt: skip


def speech(length: int) -> dict[str, Tensor]:
    return {"hidden_states": torch.randn(BATCH, length, MELS)}


def masked(length: int) -> dict[str, Tensor]:
    return {"input_features": torch.randn(BATCH, length, MELS), "attention_mask": frames(length)["attention_mask"]}


def granite(family: str, kind: str, **changes: Any) -> Case:
    def make(_: int) -> nn.Module:
        model, config = theirs(family, f"{kind}CTCEncoder", f"{kind}EncoderConfig")
        return model(config(**{**ENCODER, **changes}))

    return Case(make, speech, 2, whole, attentions=False, dropout=False, checkpoints=False)


def granite_speech5(**changes: Any) -> nn.Module:
    model, config = theirs("granite_speech5", "GraniteSpeech5Encoder", "GraniteSpeech5EncoderConfig")
    return model(config(**FIFTH, **changes))


def fifth(**changes: Any) -> Case:
    def make(_: int) -> nn.Module:
        return granite_speech5(**changes)

    return Case(make, masked, 2, at_tokens, features=("input_features",), attentions=False)


CASES = {
    "granite_speech": granite("granite_speech", "GraniteSpeech"),
    "granite_speech_one_block": granite("granite_speech", "GraniteSpeech", context_size=6),
    "granite_speech_plus": granite("granite_speech_plus", "GraniteSpeechPlus", cat_hidden_layers=[1]),
    "granite_speech5": fifth(subsample_layers=[]),
}
