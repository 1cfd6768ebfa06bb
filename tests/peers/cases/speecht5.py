"""SpeechT5's encoder and decoder, without what stands before and after them."""

from typing import Any

import torch
import transformers as hf
from torch import Tensor

from tests.peers.cases.case import BATCH, HEADS, VOCABULARY, WIDTH, Case, padding, whole

SPEECHT5 = {"vocab_size": VOCABULARY, "hidden_size": WIDTH, "encoder_layers": 2, "encoder_attention_heads": HEADS,
            "encoder_ffn_dim": 24, "decoder_layers": 2, "decoder_attention_heads": HEADS, "decoder_ffn_dim": 24,
            "encoder_layerdrop": 0.0, "decoder_layerdrop": 0.0, "pad_token_id": 0, "eos_token_id": 1,
            "bos_token_id": 2}  # fmt: skip


def states(length: int) -> dict[str, Tensor]:
    """What the encoder and the decoder read; speech and tokens alike are vectors here."""
    return {"input_values": torch.randn(BATCH, length, WIDTH), "attention_mask": padding(length),
            "decoder_input_values": torch.randn(BATCH, length, WIDTH)}  # fmt: skip


def speecht5(**changes: Any) -> Case:
    return Case(
        lambda _: hf.SpeechT5Model(hf.SpeechT5Config(**SPEECHT5, **changes)), states, 7, whole,
        features=("input_values", "decoder_input_values"), key_biases={"k_proj.bias": "k_proj.weight"},
    )  # fmt: skip


CASES = {
    "speecht5": speecht5(encoder_max_relative_position=4),
    "speecht5_unclipped": speecht5(encoder_max_relative_position=20),
}
