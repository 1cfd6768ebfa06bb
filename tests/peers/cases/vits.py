"""VITS."""

from typing import Any

import transformers as hf
from torch import Tensor

from tests.peers.cases.case import TEXT, Case, at_tokens, frames


def vits(**changes: Any) -> Case:
    settings = {**TEXT, "ffn_dim": 24, "flow_size": 8, "layerdrop": 0.0, **changes}

    def inputs(length: int) -> dict[str, Tensor]:
        speech_like = frames(length)
        return {**speech_like, "padding_mask": speech_like["attention_mask"].unsqueeze(-1).float()}

    biases = {"k_proj.bias": "k_proj.weight"}
    return Case(
        lambda _: hf.VitsModel(hf.VitsConfig(**settings)).text_encoder.encoder, inputs, 2, at_tokens, key_biases=biases
    )


CASES = {"vits": vits(window_size=3), "vits_of_one_window": vits(window_size=20)}
