"""Funnel."""

from typing import Any

import torch
import transformers as hf
from torch import Tensor

from tests.peers.cases.case import BATCH, HEADS, VOCABULARY, WIDTH, Case, at_tokens, tokens

FUNNEL = {"vocab_size": VOCABULARY, "d_model": WIDTH, "n_head": HEADS, "d_head": WIDTH // HEADS, "d_inner": 24,
          "block_sizes": [1, 2], "num_decoder_layers": 1}  # fmt: skip


def funnel(**changes: Any) -> Case:
    return Case(
        lambda _: hf.FunnelModel(hf.FunnelConfig(**{**FUNNEL, **changes})), inputs, 6, at_tokens,
        key_biases={"k_head.bias": "k_head.weight"}, attentions=False, checkpoints=False,
    )  # fmt: skip


def inputs(length: int) -> dict[str, Tensor]:
    """Two segments behind a class token, whose segment is 2."""
    kinds = torch.randint(0, 2, (BATCH, length))
    kinds[:, 0] = 2
    return {**tokens(length), "token_type_ids": kinds}


CASES = {
    "funnel": funnel(),
    "funnel_factorized": funnel(attention_type="factorized", truncate_seq=False),
    "funnel_pools_keys": funnel(pool_q_only=False, separate_cls=False, pooling_type="max"),
    "funnel_factorized_pools_keys": funnel(attention_type="factorized", pool_q_only=False),
}
