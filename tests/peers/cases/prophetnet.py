"""ProphetNet."""

from typing import Any

import torch
import transformers as hf
from torch import Tensor, nn

from tests.peers.cases.case import HEADS, VOCABULARY, WIDTH, Case, pairs_of_texts

PROPHETNET = {"vocab_size": VOCABULARY, "hidden_size": WIDTH, "num_encoder_layers": 2, "encoder_ffn_dim": 24,
              "num_encoder_attention_heads": HEADS, "num_decoder_layers": 2, "decoder_ffn_dim": 24,
              "num_decoder_attention_heads": HEADS, "num_buckets": 6, "relative_max_distance": 5, "dropout": 0.0,
              "activation_dropout": 0.0, "attention_dropout": 0.0}  # fmt: skip


def all_streams(output: Any, inputs: dict[str, Tensor]) -> Tensor:
    return torch.cat([output.last_hidden_state, output.last_hidden_state_ngram], dim=1)


def prophetnet(ngram: int) -> Case:
    def make(length: int) -> nn.Module:
        places = max(length + 3, 32)
        return hf.ProphetNetModel(hf.ProphetNetConfig(**PROPHETNET, ngram=ngram, max_position_embeddings=places))

    return Case(make, pairs_of_texts, 9, all_streams, key_biases={"key_proj.bias": "key_proj.weight"})


CASES = {"prophetnet": prophetnet(2), "prophetnet_3_streams": prophetnet(3)}
