"""Position: where the elements of one side stand on an axis: contiguous from a start, on a grid, or explicit."""

from __future__ import annotations

from collections.abc import Mapping

from jaxtyping import Int
from torch import Tensor

from relattn.positions.contiguous import ContiguousPositions
from relattn.positions.explicit import ExplicitPositions
from relattn.positions.grid import GridPositions

Position = ContiguousPositions | ExplicitPositions | GridPositions

PositionLike = Position | int | Int[Tensor, ""] | Int[Tensor, "L"] | Int[Tensor, "*B L"]
"""A caller's positions on an axis: a start, digits, or every position."""

PositionsLike = PositionLike | Mapping[str, PositionLike]
"""A caller's positions for a side: on the sequence, or on every axis by its name."""
