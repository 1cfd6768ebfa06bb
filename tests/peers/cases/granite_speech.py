"""The encoders of Granite-Speech, Granite-Speech-Plus and Granite-Speech 5."""

from typing import Any

import torch
import transformers as hf
from torch import Tensor, nn
from transformers.models.granite_speech.modeling_granite_speech import GraniteSpeechCTCEncoder
from transformers.models.granite_speech5.modeling_granite_speech5 import GraniteSpeech5Encoder
from transformers.models.granite_speech_plus.modeling_granite_speech_plus import GraniteSpeechPlusCTCEncoder

from tests.peers.cases.case import BATCH, HEADS, VOCABULARY, WIDTH, Case, at_tokens, frames, whole

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


def granite(model: type, config: type, **changes: Any) -> Case:
    def make(_: int) -> nn.Module:
        return model(config(**{**ENCODER, **changes}))

    return Case(make, speech, 2, whole, attentions=False, dropout=False, checkpoints=False)


def fifth(**changes: Any) -> Case:
    def make(_: int) -> nn.Module:
        return GraniteSpeech5Encoder(hf.GraniteSpeech5EncoderConfig(**FIFTH, **changes))

    return Case(make, masked, 2, at_tokens, features=("input_features",), attentions=False)


CASES = {
    "granite_speech": granite(GraniteSpeechCTCEncoder, hf.GraniteSpeechEncoderConfig),
    "granite_speech_one_block": granite(GraniteSpeechCTCEncoder, hf.GraniteSpeechEncoderConfig, context_size=6),
    "granite_speech_plus": granite(
        GraniteSpeechPlusCTCEncoder, hf.GraniteSpeechPlusEncoderConfig, cat_hidden_layers=[1]
    ),
    "granite_speech5": fifth(subsample_layers=[]),
}
