"""Buckets of logarithmic width by their edges: T5's and DeBERTa's."""

from __future__ import annotations

from functools import cache

import torch
from jaxtyping import Int64
from torch import Tensor

from relattn.interception import constant_in_graphs, is_intercepted
from relattn.positions.offsets import log_edges


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
