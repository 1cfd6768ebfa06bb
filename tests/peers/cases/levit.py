"""LeViT: its first stage, and the attention that brings it to half of the rows and columns."""

import math
from typing import Any

import torch
import transformers as hf
from torch import Tensor, nn

from tests.peers.cases.case import BATCH, WIDTH, Case, whole

PATCH = 16


def side(length: int) -> int:
    """Smaller grids are left as they are."""
    return max(math.isqrt(length), 9)


def forget(module: nn.Module, *_: Any) -> None:
    """In evaluation LeViT keeps the biases of its first call, whatever becomes of the parameters."""
    module.attention_bias_cache = {}


def encoder(length: int) -> nn.Module:
    """What stands before the encoder has no attention; the later stages have smaller grids, which are left."""
    config = hf.LevitConfig(
        image_size=PATCH * side(length), hidden_sizes=[WIDTH] * 3, num_attention_heads=[2] * 3, depths=[1] * 3,
        key_dim=[4] * 3,
    )  # fmt: skip
    found = hf.LevitModel(config).encoder
    del found.stages[1:]
    for module in found.modules():
        if hasattr(module, "attention_bias_cache"):
            module.register_forward_hook(forget)
    return found


def patches(length: int) -> dict[str, Tensor]:
    return {"hidden_state": torch.randn(BATCH, side(length) ** 2, WIDTH)}


CASES = {
    "levit": Case(
        encoder, patches, 2, whole, features=("hidden_state",), attentions=False, dropout=False, checkpoints=False
    )
}
