"""Position: where the elements of one side stand on an axis: contiguous from a start, on a grid, or explicit."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from jaxtyping import Int, Int64
from torch import Tensor

from relattn.score.digits import GridPositions


def counted(first: int | Int64[Tensor, ""], count: int, device: torch.device) -> Int64[Tensor, "count"]:
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
        return counted(self.start, length, device)

    def part(self, elements: slice, batch: int | None = None) -> ContiguousPositions:
        """The position of some of the elements, the same in every batch element."""
        return ContiguousPositions(self.start + elements.start)


@dataclass(frozen=True)
class ExplicitPositions:
    """p(i) = positions[..., i]: every element has a position of its own.

    positions: int64, [L] for the whole batch or [B, L].
    """

    positions: Int64[Tensor, "*B L"]

    def expand(self, length: int, device: torch.device) -> Int64[Tensor, "*B L"]:
        """The position of each of `length` elements."""
        return self.positions

    def part(self, elements: slice, batch: int | None = None) -> ExplicitPositions:
        """The position of some of the elements; [L] where `batch` names one element of the batch."""
        one = batch is not None and self.positions.dim() == 2
        return ExplicitPositions(self.positions[batch, elements] if one else self.positions[..., elements])


Position = ContiguousPositions | ExplicitPositions | GridPositions

PositionLike = Position | int | Int[Tensor, ""] | Int[Tensor, "L"] | Int[Tensor, "*B L"]
"""A caller's positions on an axis: a start, digits, or every position."""

PositionsLike = PositionLike | Mapping[str, PositionLike]
"""A caller's positions for a side: on the sequence, or on every axis by its name."""
