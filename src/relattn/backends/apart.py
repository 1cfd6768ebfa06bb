"""Sums through a stride whose places overlap, split into sums whose places do not."""

from __future__ import annotations

from collections.abc import Iterator

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
