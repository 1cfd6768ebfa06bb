"""Boxes: neighbouring elements whose positions are linear in the digits of their number, such as whole rows of a grid.

Over a box of sizes (n_0, ..., n_l) element (a_0, ..., a_l), the last digit fastest, stands at position + sum_l step_l *
a_l. So the offsets between two boxes are linear in the digits of both. They need a stride, and no list.
"""

from __future__ import annotations

from functools import lru_cache
from itertools import pairwise
from math import prod
from typing import NamedTuple

from torch import Tensor

from relattn.positions.contiguous import ContiguousPositions
from relattn.positions.grid import GridPositions
from relattn.positions.position import Position


class Box(NamedTuple):
    """Elements start .. start + prod(sizes) - 1 of a side; `position` is the position of the first."""

    start: int
    position: int
    sizes: tuple[int, ...]
    steps: tuple[int, ...]

    @property
    def count(self) -> int:
        """How many elements there are."""
        return prod(self.sizes)

    @property
    def reach(self) -> int:
        """How far the last element stands beyond the first."""
        return sum(step * (size - 1) for step, size in zip(self.steps, self.sizes, strict=True))


def units(place: Position) -> tuple[int, ...] | None:
    """The numbers of elements after which a digit of the position changes, ascending from 1: 1, width, height * width
    for a grid's row.

    Each divides the next. None where no such numbers exist: for explicit positions, starts that are tensors, and
    digits of other kinds.
    """
    if isinstance(place, ContiguousPositions):
        return None if isinstance(place.start, Tensor) else (1,)
    return _units_of(place.terms) if isinstance(place, GridPositions) else None


@lru_cache(maxsize=1024)
def _units_of(terms: tuple[tuple[int, int, int], ...]) -> tuple[int, ...] | None:
    if any(step < 0 for step, _, _ in terms):
        return None
    found = sorted({1, *(unit for _, repeat, length in terms for unit in (repeat, repeat * length))})
    if any(larger % smaller for smaller, larger in pairwise(found)):
        return None
    return tuple(found)


@lru_cache(maxsize=1024)
def boxes(place: ContiguousPositions | GridPositions, length: int) -> tuple[Box, ...]:
    """The first `length` elements in as few boxes as possible. `units` of the place must not be None."""
    if isinstance(place, ContiguousPositions):
        assert isinstance(place.start, int)
        return (Box(0, place.start, (length,), (1,)),) if length else ()
    unit_sizes = units(place)
    assert unit_sizes is not None
    prefix_tokens = min(place.prefix_tokens, length)
    parts = [Box(0, place.off_grid, (prefix_tokens,), (0,))] if prefix_tokens else []
    steps = tuple(_step(place, unit) for unit in unit_sizes)
    for first, sizes in _split_into_runs(place.first, place.first + length - prefix_tokens, unit_sizes):
        start = prefix_tokens + first - place.first
        parts.append(_merged(Box(start, _position(place, first), sizes, steps[: len(sizes)][::-1])))
    return tuple(parts)


def _step(place: GridPositions, unit: int) -> int:
    """The growth of the position from an element to the element `unit` further on, where no digit starts again."""
    return sum(step * unit // repeat for step, repeat, length in place.terms if repeat <= unit < repeat * length)


def _position(place: GridPositions, element: int) -> int:
    return place.start + sum(step * (element // repeat % length) for step, repeat, length in place.terms)


def _split_into_runs(first: int, end: int, unit_sizes: tuple[int, ...]) -> list[tuple[int, tuple[int, ...]]]:
    """Elements first .. end - 1 in runs of whole units, the largest that fit: (first element, sizes), in order."""
    if first >= end:
        return []
    smaller, unit = unit_sizes[:-1], unit_sizes[-1]
    if not smaller:
        return [(first, (end - first,))]
    whole, after = -(-first // unit) * unit, end // unit * unit
    if whole >= after:
        middle = min(max(whole, first), end)
        return _split_into_runs(first, middle, smaller) + _split_into_runs(middle, end, smaller)
    sizes = [(after - whole) // unit]
    sizes += [larger // size for size, larger in reversed(list(pairwise(unit_sizes)))]
    return [*_split_into_runs(first, whole, smaller), (whole, tuple(sizes)), *_split_into_runs(after, end, smaller)]


def _merged(box: Box) -> Box:
    """The same box with as few digits as its positions need."""
    sizes, steps = [1], [0]
    for size, step in zip(box.sizes, box.steps, strict=True):
        if size == 1:
            continue
        if sizes[-1] == 1:
            sizes[-1], steps[-1] = size, step
        elif steps[-1] == step * size:
            sizes[-1], steps[-1] = sizes[-1] * size, step
        else:
            sizes.append(size)
            steps.append(step)
    return box._replace(sizes=tuple(sizes), steps=tuple(steps))
