"""ContiguousPositions: elements that follow one another from a start."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from jaxtyping import Int64
from torch import Tensor


def consecutive(first: int | Int64[Tensor, ""], count: int, device: torch.device) -> Int64[Tensor, "count"]:
    """first, first + 1, ..., first + count - 1."""
    if isinstance(first, Tensor):
        return torch.arange(count, device=device) + first
    return torch.arange(first, first + count, device=device)


def as_tensor(number: int | Int64[Tensor, ""], device: torch.device) -> Int64[Tensor, ""]:
    """A number as a tensor on the device. An int is written by the device, because a CUDA graph that is captured can
    copy nothing to it, and a graph keeps it open. A tensor of the CPU is copied, so such a graph cannot have one.
    """
    return number.to(device) if isinstance(number, Tensor) else torch.full((), number, dtype=torch.int64, device=device)


@dataclass(frozen=True)
class ContiguousPositions:
    """p(i) = start + i: the elements follow one another.

    start: an int, or a 0-d int64 tensor, which is never read.
    """

    start: int | Int64[Tensor, ""]

    def expand(self, length: int, device: torch.device) -> Int64[Tensor, "L"]:
        """The position of each of `length` elements."""
        return consecutive(self.start, length, device)

    def part(self, elements: slice, batch: int | None = None) -> ContiguousPositions:
        """The position of some of the elements, the same in every batch element."""
        return ContiguousPositions(self.start + elements.start)
