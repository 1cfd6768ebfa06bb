"""One offset table over patches of a grid: every digit of queries and keys is an axis of the patch, and has a step.

In boxes (`relattn.positions.boxes`) the offset of a patch's element is linear in the digits of its row and of its
column. So the band is read through one stride per digit. Digits that do not change the offset have stride 0: one row of
numbers serves all rows of a grid, and one number serves a whole row.
"""

from __future__ import annotations

from collections.abc import Iterator
from math import prod
from typing import NamedTuple

from torch import Tensor

from relattn.backends.sums import apart
from relattn.backends.tiled.bands import ALIGNED, Band, GridOffsets, Offsets
from relattn.positions.boxes import Box


class GridBand(Band):
    """GridPositions: `offsets` are the boxes of a patch's rows and columns.

    The offsets of a box of prefix tokens lie completely beyond the table.
    """

    def spread(self, scores: Tensor, x: Tensor | None, offsets: Offsets) -> None:
        """Read the strip of products, of the few offsets that two boxes have, through a stride for each digit."""
        for rows, columns, place in self._pairs(offsets):
            patch = _in_digits(scores, rows, columns)
            if x is None:
                strip, row_step = self.rows[:, place.start :].unsqueeze(1), 0
            else:
                strip = self._strip(x[:, rows.elements], place.start, place.width)
                row_step = strip.shape[2]
            patch += _reading(strip, patch, rows, columns, place, row_step)

    def collect(self, weights: Tensor, x: Tensor | None, offsets: Offsets, sums: Tensor | None) -> None:
        """Sum the weights over digits that do not change the offset, and lay them into a strip through the strides."""
        if self.gradient is None and sums is None:
            return
        for rows, columns, place in self._pairs(offsets):
            patch = weights[:, rows.elements, columns.elements]
            height, heads = patch.shape[1], patch.shape[0]
            at_once = heads if x is not None else max(heads * patch.shape[2] // place.width, 1)
            for first in range(0, heads, at_once):  # a bias' strip may be much wider than its patch
                some = slice(first, min(first + at_once, heads))
                strip = self.scratch.take("strip", some.stop - some.start, height, place.width).zero_()
                _lay(weights[some], strip, rows, columns, place)
                of_rows = None if x is None else x[some, rows.elements]
                band = self if at_once >= heads else self.for_heads(some)
                band._collect_strip(strip, of_rows, place.start, None if sums is None else sums[some, rows.elements])

    def _pairs(self, offsets: Offsets) -> Iterator[tuple[Box, Box, _Place]]:
        """Every box of rows with every box of columns, where the table adds something for their offsets."""
        assert isinstance(offsets, GridOffsets)
        for rows in offsets.rows:
            for columns in offsets.columns:
                place = self._place(rows, columns)
                if place is not None:
                    yield rows, columns, place

    def _place(self, rows: Box, columns: Box) -> _Place | None:
        """Where the offsets of two boxes lie in `rows`; None where the table adds nothing."""
        first = rows.position + columns.position - self.lowest + self.margin
        count = rows.reach + columns.reach + 1
        last = 2 * self.margin + self.highest - self.lowest  # of `rows`, without rows that only fill a strip
        if first >= 0 and first + count - 1 <= last:
            return _Place(first, -(-count // ALIGNED) * ALIGNED, rows.steps, columns.steps)
        assert first > last or first + count <= 0, "a part of a grid lies beyond its offsets"
        if not self.clamps:
            return None
        still = (0,) * len(rows.steps), (0,) * len(columns.steps)
        return _Place(0 if first < 0 else last, 1, *still)


class _Place(NamedTuple):
    """The rows start .. start + width - 1 of a band, and the step of each digit of a row and of a column."""

    start: int
    width: int
    row_steps: tuple[int, ...]
    column_steps: tuple[int, ...]


def _in_digits(scores: Tensor, rows: Box, columns: Box) -> Tensor:
    """The boxes' part of a tile, with one axis per digit."""
    part = scores[:, rows.elements, columns.elements]
    if len(columns.sizes) > 1:
        part = part.unflatten(2, columns.sizes)
    return part.unflatten(1, rows.sizes) if len(rows.sizes) > 1 else part


def _reading(strip: Tensor, patch: Tensor, rows: Box, columns: Box, place: _Place, row_step: int) -> Tensor:
    """view[a, c] = strip[a, steps . a + steps . c], the same memory; with row_step 0 every row reads one row."""
    below = [row_step * prod(rows.sizes[level + 1 :]) for level in range(len(rows.sizes))]
    row_strides = [wide + step for wide, step in zip(below, place.row_steps, strict=True)]
    size = (strip.shape[0], *patch.shape[1:])
    return strip.as_strided(size, (strip.stride(0), *row_strides, *place.column_steps), strip.storage_offset())


def _lay(weights: Tensor, strip: Tensor, rows: Box, columns: Box, place: _Place) -> None:
    """strip[a, steps . a + steps . c] += weights[a, c]; the strip is zero."""
    patch, at = _in_digits(weights, rows, columns), 1 + len(rows.sizes)
    still = [at + digit for digit, step in enumerate(place.column_steps) if step == 0]
    if still:
        patch = patch.sum(dim=still, keepdim=True)
    into = _reading(strip, patch, rows, columns, place, strip.shape[2])
    moving = [(step, at + digit) for digit, step in enumerate(place.column_steps) if step]
    for one, place_of_it in apart(patch, into, moving):
        place_of_it += one
