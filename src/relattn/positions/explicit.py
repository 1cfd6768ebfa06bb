"""ExplicitPositions: every element has a position of its own."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from jaxtyping import Int64
from torch import Tensor


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
