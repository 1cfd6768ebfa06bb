"""Sums of scores into rows, always in the same order: by an index, and through strides whose places overlap."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from jaxtyping import Float, Int64
from torch import Tensor


def apart(values: Tensor, into: Tensor, moving: list[tuple[int, int]]) -> Iterator[tuple[Tensor, Tensor]]:
    """The values, split into parts whose elements all have different places in memory: all values, or one value of a
    digit at a time.

    into: a view with the shape of the values. moving: (step, axis) of the axes along which its places lie side by side.
    Along the other axes two places are never the same.
    """
    reach = 0
    for step, dim in sorted(moving):
        if step <= reach:
            fewer = [(other_step, other) for other_step, other in moving if other != dim]
            for number in range(values.shape[dim]):
                yield from apart(values.narrow(dim, number, 1), into.narrow(dim, number, 1), fewer)
            return
        reach += step * (values.shape[dim] - 1)
    yield values, into


def sum_columns(
    weights: Float[Tensor, "*n L Lk"], index: Int64[Tensor, "*n L Lk"], count: int
) -> Float[Tensor, "*n L count"]:
    """strip[a, r] = the sum of weights[a, c] over the c with index[a, c] = r, deterministic, not differentiable."""
    strip = weights.new_zeros(*weights.shape[:-1], count)
    if weights.device.type == "cpu":  # one thread goes along a row
        return strip.scatter_add_(-1, index, weights)
    # Elsewhere scatter_add is made of atomics; an accumulating index_put sorts its indices first.
    rows = torch.arange(strip.numel() // count, device=index.device).unsqueeze(-1)
    width = index.shape[-1]
    places = (rows.expand(-1, width), index.reshape(-1, width))
    return strip.view(-1, count).index_put_(places, weights.reshape(-1, width), accumulate=True).view_as(strip)
