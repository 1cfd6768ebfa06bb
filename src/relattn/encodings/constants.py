"""Tensors that depend on no parameter and that every call asks for: they are made once."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache, lru_cache, wraps
from typing import TypeVar, TypeVarTuple

import torch
from jaxtyping import Float64, Int64
from torch import Tensor

from relattn.interception import constant_in_graphs, is_intercepted
from relattn.positions.offsets import log_edges

Key = TypeVarTuple("Key")
Made = TypeVar("Made")
CPU = torch.device("cpu")
SMALL_TENSORS = 64
"""Answers that a function of small tensors keeps."""
LONG_TENSORS = 4
"""Answers that a function of tensors as long as the call keeps: the layers of a model ask for the same few."""


def lru_tensor_cache(size: int) -> Callable[[Callable[[*Key], Made]], Callable[[*Key], Made]]:
    """Keeps the last `size` answers of a function that makes tensors on a CPU.

    Its arguments are hashable, and a device is among them. Nobody may write to these tensors. Nothing is kept where a
    compiler, a mode or torch.func watches, because there they are no plain tensors. Nothing is kept on a GPU either: a
    CUDA graph may hold their address, or a stream may not have written them yet. Nor where an argument is a tensor (the
    first offset of a call with such a start), whose number may change. In inference mode they are made outside of that
    mode, because a later call may need them for gradients.
    """

    def keeping(make: Callable[[*Key], Made]) -> Callable[[*Key], Made]:
        kept = lru_cache(maxsize=size)(torch.inference_mode(False)(make))

        @wraps(make)
        def ask(*key: *Key) -> Made:
            fixed = CPU in key and Tensor not in map(type, key) and not is_intercepted(())
            return kept(*key) if fixed else make(*key)

        return ask

    return keeping


def inverse_frequencies(width: int, base: float, device: torch.device) -> Float64[Tensor, "half"]:
    """base^(-2 i / width) for i = 0 .. width/2 - 1, as in `offsets`, on the device in one operation."""
    last = -(width - 2) / width
    return torch.logspace(0.0, last, width // 2, base=base, dtype=torch.float64, device=device)


def edges_reached(
    distance: Int64[Tensor, "*n"], first: int, last: int, steps: int, count: int, *, strict: bool
) -> Int64[Tensor, "*n"]:
    """How many edges of `relattn.offsets.log_edges` a distance has reached.

    It compares whole numbers, so every device, compiler and exported graph finds the same bucket.
    """
    sizes = distance.device, first, last, steps, count, strict
    edges = _edges(*sizes) if is_intercepted(()) else _cached_edges(*sizes)
    return torch.bucketize(distance.contiguous(), edges, right=True)


def _edges(device: torch.device, first: int, last: int, steps: int, count: int, strict: bool) -> Int64[Tensor, "count"]:
    return torch.tensor(_edge_numbers(first, last, steps, count, strict), dtype=torch.int64, device=device)


_cached_edges = cache(torch.inference_mode(False)(_edges))
"""The edges, kept for good: a CUDA graph cannot copy them to its device, and may hold their address.

The copy ends before the tensor is given away, so every stream may read it.
"""


@constant_in_graphs
def _edge_numbers(first: int, last: int, steps: int, count: int, strict: bool) -> list[int]:
    return log_edges(first, last, steps, count, strict=strict).tolist()
