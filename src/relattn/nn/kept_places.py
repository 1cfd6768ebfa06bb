"""KeptPlaces: where a cache's keys stand on the axes beside the sequence."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

import torch
from jaxtyping import Int64
from torch import Tensor

from relattn.nn.growing import Growing
from relattn.positions.explicit import ExplicitPositions
from relattn.positions.grid import GridPositions
from relattn.positions.position import Position

POSITION_AXIS = 1


@dataclass(frozen=True)
class KeptPlaces:
    """The positions of `length` keys on each axis, by name.

    Digits that go on where the last chunk ended stay digits; anything else is kept as a list, [B, length].
    """

    by_axis: Mapping[str, GridPositions | Growing] = field(default_factory=dict)
    length: int = 0

    def append(
        self, name: str, more: Mapping[str, Position], count: int, batch: int, device: torch.device
    ) -> KeptPlaces:
        """The places with `count` more keys at `more`. name: the name of the argument, for the message.

        Raises ValueError: where the axes differ from those of earlier keys, and for tokens before a grid together with
        explicit positions.
        """
        if self.length and set(more) != set(self.by_axis):
            raise ValueError(
                f"{name}: got the axes {sorted(more)} for the new tokens, and the cache holds keys on "
                f"{sorted(self.by_axis)}; expected the same axes with every chunk; start a new cache for others"
            )
        grown = {axis: self._grown(name, axis, place, count, batch, device) for axis, place in more.items()}
        return KeptPlaces(grown, self.length + count)

    def part(self, start: int, stop: int) -> KeptPlaces:
        """The places of only the keys start .. stop - 1."""
        parts = {
            axis: held.part(slice(start, stop)) if isinstance(held, GridPositions) else held.part(start, stop)
            for axis, held in self.by_axis.items()
        }
        return KeptPlaces(parts, stop - start)

    def select(self, index: Int64[Tensor, "B2"]) -> KeptPlaces:
        """Row b of the batch gets the places of row index[b]."""
        rows = {a: held.select(index) if isinstance(held, Growing) else held for a, held in self.by_axis.items()}
        return KeptPlaces(rows, self.length)

    def compact(self) -> KeptPlaces:
        """The same without spare room."""
        rows = {a: held.compact() if isinstance(held, Growing) else held for a, held in self.by_axis.items()}
        return KeptPlaces(rows, self.length)

    def positions(self) -> dict[str, Position]:
        """Where the keys stand on each axis."""
        return {
            a: ExplicitPositions(held.held) if isinstance(held, Growing) else held for a, held in self.by_axis.items()
        }

    def _grown(
        self, name: str, axis: str, more: Position, count: int, batch: int, device: torch.device
    ) -> GridPositions | Growing:
        """The positions on one axis, with those of `count` more keys."""
        held = self.by_axis[axis] if self.length else None
        if isinstance(more, GridPositions):
            if held is None:
                return replace(more, count=None)
            if isinstance(held, GridPositions) and _continues(held, self.length, more):
                return held
        if any(isinstance(place, GridPositions) and place.prefix_tokens for place in (held, more)):
            raise ValueError(
                f"{name}[{axis!r}]: got positions that do not go on where the cache's grid ended, which has tokens "
                "before it; expected the next part of that grid: relattn.grid(..., first=, length=)"
            )
        rows = more.expand(count, device).expand(batch, count)
        if held is None:
            return Growing.of(rows, POSITION_AXIS)
        if isinstance(held, GridPositions):
            held = Growing.of(held.expand(self.length, device).expand(batch, -1), POSITION_AXIS)
        return held.append(rows)


def _continues(held: GridPositions, length: int, more: GridPositions) -> bool:
    """Whether `more` continues `held` after `length` elements."""
    return replace(held.part(slice(length, length)), count=None) == replace(more, count=None)
