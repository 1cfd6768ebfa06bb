"""LeViT: three stages, each on half of the rows and columns of the one before."""

from typing import Any

import torch
import transformers as hf
from torch import Tensor, nn

from tests.peers.cases.beit import side
from tests.peers.cases.case import BATCH, WIDTH, Case, whole

PATCH = 16


def forget(module: nn.Module, *_: Any) -> None:
    """In evaluation LeViT keeps the biases of its first call, whatever becomes of the parameters."""
    module.attention_bias_cache = {}  # pyright: ignore[reportArgumentType]


def encoder(length: int) -> nn.Module:
    """What stands before it has no attention."""
    config = hf.LevitConfig(
        image_size=PATCH * side(length), hidden_sizes=[WIDTH] * 3, num_attention_heads=[2] * 3, depths=[1] * 3,
        key_dim=[4] * 3,
    )  # fmt: skip
    found = hf.LevitModel(config).encoder
    for module in found.modules():
        if hasattr(module, "attention_bias_cache"):
            module.register_forward_hook(forget)
    return found


def patches(length: int) -> dict[str, Tensor]:
    return {"hidden_state": torch.randn(BATCH, side(length) ** 2, WIDTH)}


CASES = {
    "levit": Case(
        encoder, patches, 5, whole, features=("hidden_state",), attentions=False, dropout=False, checkpoints=False
    )
}
