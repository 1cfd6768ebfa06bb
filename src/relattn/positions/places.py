"""Places: where queries and keys stand on every axis of a call."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import TypeVar

import torch
from jaxtyping import Int64
from torch import Tensor

from relattn.positions.contiguous import ContiguousPositions
from relattn.positions.explicit import ExplicitPositions
from relattn.positions.grid import GridPositions
from relattn.positions.position import Position
from relattn.positions.positions import SEQUENCE, Positions, Span

AnyPositions = TypeVar("AnyPositions", bound=Positions)
OFF_GRID = 2**59
"""The position of prefix queries: so far away that no offset to or from them is an offset of a grid."""


@dataclass(frozen=True)
class JointPositions(Positions):
    """Positions on several axes as one: p = sum_c stride_c * p_c. Each combination of offsets has its own number.

    A stride is the number of offset combinations of the axes after it. So the offsets of a call, from the smallest to
    the largest, run through every combination of the axes' visible offsets, the last axis fastest.

    by_axis: the positions on each axis, by name, in their order.
    """

    by_axis: Mapping[str, Positions] = field(default_factory=dict)

    @property
    def spans(self) -> dict[str, Span]:
        """The visible offsets on each axis. They include offsets of pairs that another axis hides."""
        return {axis: positions.span for axis, positions in self.by_axis.items()}

    def offsets_on_axes(self) -> Int64[Tensor, "count axes"]:
        """The offset on every axis of each joint offset of the span, in its order."""
        by_axis = [span.offsets(self.device) for span in self.spans.values()]
        return torch.stack(torch.meshgrid(*by_axis, indexing="ij"), dim=-1).flatten(0, -2)

    @property
    def visible(self) -> tuple[int, int]:
        """The smallest and the largest joint offset of the axes' visible offsets."""
        if self.query_length <= self.prefix_tokens[0] or self.key_length <= self.prefix_tokens[1]:
            return 0, -1
        if not self._read:
            first, count = 0, 1
            for span in self.spans.values():
                assert isinstance(span.first, int)
                first, count = first * span.count + span.first, count * span.count
            self._read.append((first, first + count - 1))
        return self._read[0]

    def part(self, queries: slice, keys: slice, batch: int | None = None) -> Positions:
        """Where some of the queries and keys stand. Each offset keeps its number."""
        return Positions(
            self.query.part(queries, batch), self.key.part(keys, batch),
            queries.stop - queries.start, keys.stop - keys.start, self.device, axis=self.axis,
        )  # fmt: skip


@dataclass(frozen=True)
class Places:
    """Where queries and keys stand on the sequence, which decides causality and window, and on others by name."""

    sequence: Positions
    others: Mapping[str, Positions] = field(default_factory=dict)
    _joint: dict[tuple[str, ...], JointPositions] = field(init=False, default_factory=dict)

    @property
    def by_axis(self) -> dict[str, Positions]:
        """The positions on every axis, the sequence first."""
        return {SEQUENCE: self.sequence, **self.others}

    def on(self, axes: tuple[str, ...], who: str) -> Positions:
        """The positions on one axis, or on several together.

        who: the name of the caller, for the message.

        Raises ValueError: for an axis that the call does not have.
        """
        self._check(axes, who)
        if len(axes) == 1:
            return self.by_axis[axes[0]]
        if axes not in self._joint:
            self._joint[axes] = joined({axis: self.by_axis[axis] for axis in axes})
        return self._joint[axes]

    def apart(self, axes: tuple[str, ...], who: str) -> Positions:
        """The same without a joint offset: for several axes, the sequence's positions with `by_axis`."""
        self._check(axes, who)
        if len(axes) == 1:
            return self.by_axis[axes[0]]
        first = self.sequence
        return JointPositions(
            first.query, first.key, first.query_length, first.key_length, first.device,
            axis=", ".join(axes), by_axis={axis: self.by_axis[axis] for axis in axes},
        )  # fmt: skip

    def _check(self, axes: tuple[str, ...], who: str) -> None:
        missing = [axis for axis in axes if axis not in self.by_axis]
        if missing:
            raise ValueError(
                f"{who}: stands on the axis {missing[0]!r}, and query_position and key_position give "
                f"{', '.join(map(repr, self.by_axis))}; expected both to give it: query_position={{{missing[0]!r}: "
                "...}, key_position={...}, or relattn.grid for both"
            )


def positions_on(
    axis: str, query: Position, key: Position, query_length: int, key_length: int, device: torch.device
) -> Positions:
    """The positions on an axis beside the sequence, with the prefix tokens far away.

    Prefix queries stand at OFF_GRID. Prefix keys stand as far away, plus the largest offset + 1. So the offset of a
    prefix query and a key of the grid lies below every other. The offset of a query of the grid and a prefix key lies
    far above, and the offset of two prefix tokens just above.
    """
    return _apart(Positions(query, key, query_length, key_length, device, axis=axis))


def _apart(positions: AnyPositions) -> AnyPositions:
    """The positions, with prefix tokens at the places that `positions_on` describes."""
    if positions.prefix_tokens == (0, 0):
        return positions
    first, last = positions.visible
    assert isinstance(first, int) and isinstance(last, int)
    sides = {}
    for name, off_grid in (("query", OFF_GRID), ("key", OFF_GRID + max(first, last) + 1)):  # offset 0 without a pair
        side = getattr(positions, name)
        sides[name] = replace(side, off_grid=off_grid) if isinstance(side, GridPositions) else side
    return replace(positions, **sides)


def joined(by_axis: Mapping[str, Positions]) -> JointPositions:
    """The positions on several axes as one. Positions of digits are kept, because each layer of a model asks again."""
    if torch.compiler.is_compiling() or not all(_in_digits(positions) for positions in by_axis.values()):
        return _joined(by_axis)
    return _joined_digits(tuple(by_axis.items()))


def _in_digits(positions: Positions) -> bool:
    """Whether both sides' positions are plain numbers: then equal positions have equal hashes, and hold no tensor."""
    sides = isinstance(positions.query, GridPositions) and isinstance(positions.key, GridPositions)
    return sides and positions.memo is None and type(positions.query_length) is type(positions.key_length) is int


@lru_cache(maxsize=64)
def _joined_digits(by_axis: tuple[tuple[str, Positions], ...]) -> JointPositions:
    return _joined(dict(by_axis))


def _joined(by_axis: Mapping[str, Positions]) -> JointPositions:
    some = next(iter(by_axis.values()))
    by_axis = {axis: _without_tensor_starts(positions) for axis, positions in by_axis.items()}
    strides, stride = [], 1
    for positions in reversed(list(by_axis.values())):
        strides.append(stride)
        stride *= positions.span.count
    strides.reverse()
    name = ", ".join(by_axis)
    query = _sum(name, [on.query for on in by_axis.values()], strides, some.query_length, some.device)
    key = _sum(name, [on.key for on in by_axis.values()], strides, some.key_length, some.device)
    joint = JointPositions(query, key, some.query_length, some.key_length, some.device, axis=name, by_axis=by_axis)
    return _apart(joint)


def _sum(axes: str, places: list[Position], strides: list[int], length: int, device: torch.device) -> Position:
    """sum_c stride_c * p_c for one side: digits where all positions are digits, else a list of every position."""
    digits = [place for place in places if isinstance(place, GridPositions)]
    if len(digits) == len(places) and all(
        place.first == digits[0].first and place.prefix_tokens == digits[0].prefix_tokens for place in digits
    ):
        sides = list(zip(digits, strides, strict=True))
        terms = [(stride * step, repeat, count) for place, stride in sides for step, repeat, count in place.terms]
        start = sum(stride * place.start for place, stride in sides)
        return replace(digits[0], terms=tuple(terms), start=start)
    if any(place.prefix_tokens for place in digits):
        raise ValueError(
            f"query_position, key_position: got prefix tokens on some of the axes {axes} and not on others; expected "
            "one relattn.grid for all of them, or explicit positions on all of them"
        )
    explicit = [stride * place.expand(length, device) for place, stride in zip(places, strides, strict=True)]
    return ExplicitPositions(torch.stack(torch.broadcast_tensors(*explicit)).sum(dim=0))


def _without_tensor_starts(positions: Positions) -> Positions:
    """The positions, with a start that is a tensor written as a list: the extremes of a list can be read."""
    if not isinstance(positions.origin, Tensor):
        return positions
    query = run_as_list(positions.query, positions.query_length, positions.device)
    return replace(positions, query=query, key=run_as_list(positions.key, positions.key_length, positions.device))


def run_as_list(place: Position, length: int, device: torch.device) -> Position:
    """Contiguous positions whose start is a tensor, as explicit ones: offsets beside the sequence are looked up."""
    if isinstance(place, ContiguousPositions) and isinstance(place.start, Tensor):
        return ExplicitPositions(place.expand(length, device))
    return place
