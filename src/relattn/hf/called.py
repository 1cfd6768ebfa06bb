"""Tables of other modules, which are called: their weights may be adapted, offloaded, sharded or packed."""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor, nn


def rows_of(embedding: nn.Module, count: int, device: torch.device) -> Float[Tensor, "count width"]:
    """All rows of an embedding of `count` rows, as a lookup gives them."""
    return embedding(torch.arange(count, device=device))


def columns_of(linear: nn.Module, count: int, like: Tensor) -> Float[Tensor, "count width"]:
    """What a projection without a bias gives for each of its `count` inputs alone, in the dtype of `like`."""
    return linear(torch.eye(count, dtype=like.dtype, device=like.device))
