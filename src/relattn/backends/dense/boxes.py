"""Strips and pairs where positions are linear in digits: grids, read and written through one stride per digit.

In boxes (`relattn.positions.boxes`) a pair's column in the strip is linear in the digits of its row a and its column c:

    index(a, c) = shift + position_c - position_a + steps_c . c - steps_a . a

Digits that do not change it have stride 0. No index of pairs is written down, and no tensor as large as the scores.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from math import prod
from typing import NamedTuple

import torch
from torch import Tensor

from relattn.backends.sums import apart
from relattn.equation.tables import OffsetTable
from relattn.positions.boxes import Box, boxes, units
from relattn.positions.contiguous import ContiguousPositions
from relattn.positions.grid import GridPositions
from relattn.positions.positions import Positions

BLOCK = 2**20
"""The numbers of a bias that are written out at a time: their rows are reversed, and strides cannot be negative."""


class _Part(NamedTuple):
    """A box of rows and a box of columns: the strip's column of their first pair, and the step of each digit."""

    rows: Box
    columns: Box
    start: int
    row_steps: tuple[int, ...]
    column_steps: tuple[int, ...]


@dataclass(frozen=True)
class Layout:
    """How the pairs of `rows` and `columns` lie in a strip `width` numbers wide."""

    rows: tuple[Box, ...]
    columns: tuple[Box, ...]
    shift: int
    width: int

    @property
    def parts(self) -> Iterator[_Part]:
        """Every box of rows with every box of columns; a box of prefix tokens lies completely beyond the strip."""
        for rows in self.rows:
            for columns in self.columns:
                start = self.shift + columns.position - rows.position
                if start - rows.reach >= 0 and start + columns.reach < self.width:
                    yield _Part(rows, columns, start, rows.steps, columns.steps)
                else:
                    still = (0,) * len(rows.steps), (0,) * len(columns.steps)
                    yield _Part(rows, columns, 0 if start < 0 else self.width - 1, *still)


class InBoxes(NamedTuple):
    """GridPositions: the rows of every visible offset, and the layout of the pairs in a strip of them."""

    rows: Tensor
    layout: Layout

    @classmethod
    def of(cls, table: OffsetTable, positions: Positions, dtype: torch.dtype, *, by_key: bool) -> InBoxes | None:
        """None where positions do not form boxes, or leave such wide gaps that few of the rows would be used.

        by_key: a strip has one row per key, and the table's rows are reversed.
        """
        query, key = positions.query, positions.key
        if isinstance(table.first, torch.Tensor) or units(query) is None or units(key) is None:
            return None
        first, last = positions.visible
        assert isinstance(first, int) and isinstance(last, int)
        kinds = (ContiguousPositions, GridPositions)
        assert isinstance(query, kinds) and isinstance(key, kinds)
        if last - first > 2 * (table.num_rows + positions.query_length + positions.key_length):
            return None
        if positions.prefix_tokens != (0, 0):  # one row beyond each end, for their offsets
            ends = table.first, table.first + table.num_rows - 1
            first, last = (min(first, ends[0]), max(last, ends[1])) if first <= last else ends
            first, last = first - 1, last + 1
        width = max(last - first + 1, 1)
        rows = table.to(dtype).rows(first, width)
        of_queries, of_keys = boxes(query, positions.query_length), boxes(key, positions.key_length)
        if by_key:
            return cls(rows.flip(1), Layout(of_keys, of_queries, first + width - 1, width))
        return cls(rows, Layout(of_queries, of_keys, -first, width))

    def spread(self, strip: Tensor) -> Tensor:
        """score[i, j] = strip[i, index of the pair]."""
        return _Spread.apply(strip, self.layout)  # pyright: ignore[reportReturnType]

    def bias_strip(self, height: int) -> Tensor:
        """The rows once: `added` takes them for all queries."""
        return self.rows.unsqueeze(-2)

    def added(self, scores: Tensor, strip: Tensor) -> Tensor:
        """scores + spread(strip), in place. A strip of one row, as a bias has, is used for all rows."""
        return _Add.apply(scores, strip, self.layout)  # pyright: ignore[reportReturnType]

    def collect(self, weights: Tensor) -> Tensor:
        """strip[i, column] = the sum of the weights of the pairs that lie there."""
        return _Collect.apply(weights, weights.shape[-2], self.layout)  # pyright: ignore[reportReturnType]


class _Add(torch.autograd.Function):
    """scores[i, j] += strip[i, index of the pair], in place."""

    @staticmethod
    def forward(scores: Tensor, strip: Tensor, layout: Layout) -> Tensor:
        return _add(scores, strip, layout)

    @staticmethod
    def setup_context(ctx, inputs: tuple[Tensor, Tensor, Layout], output: Tensor) -> None:
        scores, strip, ctx.layout = inputs
        ctx.shape = strip.shape
        ctx.mark_dirty(scores)

    @staticmethod
    def backward(ctx, gradient: Tensor):
        if not ctx.needs_input_grad[1]:
            return gradient, None, None
        strip = _Collect.apply(gradient, ctx.shape[-2], ctx.layout)
        assert isinstance(strip, Tensor)
        return gradient, strip.sum_to_size(ctx.shape), None


class _Spread(torch.autograd.Function):
    @staticmethod
    def forward(strip: Tensor, layout: Layout) -> Tensor:
        counts = (sum(box.count for box in side) for side in (layout.rows, layout.columns))
        return _add(strip.new_zeros(*strip.shape[:-2], *counts), strip, layout)

    @staticmethod
    def setup_context(ctx, inputs: tuple[Tensor, Layout], output: Tensor) -> None:
        strip, ctx.layout = inputs
        ctx.shape = strip.shape

    @staticmethod
    def backward(ctx, gradient: Tensor):
        strip = _Collect.apply(gradient, ctx.shape[-2], ctx.layout)
        assert isinstance(strip, Tensor)
        return strip.sum_to_size(ctx.shape), None

    @staticmethod
    def vmap(info, in_dims, strip: Tensor, layout: Layout):
        return torch.stack([_Spread.apply(one, layout) for one in strip.unbind(in_dims[0])]), 0  # pyright: ignore


class _Collect(torch.autograd.Function):
    """The transpose: strip[i, column] = the sum of weights[i, j] over the pairs that lie there.

    height: 1 sums over the rows, and the batch too.
    """

    @staticmethod
    def forward(weights: Tensor, height: int, layout: Layout) -> Tensor:
        one = height < weights.shape[-2]
        if one and weights.shape[0] != 1:
            weights = weights.sum(dim=0, keepdim=True)
        strip = weights.new_zeros(*weights.shape[:-2], height, layout.width)
        for part in layout.parts:
            (_sum_part if one else _write_part)(weights, strip, part)
        return strip

    @staticmethod
    def setup_context(ctx, inputs: tuple[Tensor, int, Layout], output: Tensor) -> None:
        weights, _, ctx.layout = inputs
        ctx.shape = weights.shape

    @staticmethod
    def backward(ctx, gradient: Tensor):
        rows = gradient.expand(*ctx.shape[:-1], -1)
        return _Spread.apply(rows, ctx.layout), None, None

    @staticmethod
    def vmap(info, in_dims, weights: Tensor, height: int, layout: Layout):
        return torch.stack([_Collect.apply(one, height, layout) for one in weights.unbind(in_dims[0])]), 0  # pyright: ignore


def _add(scores: Tensor, strip: Tensor, layout: Layout) -> Tensor:
    """scores[i, j] += strip[i, index of the pair]."""
    strip = strip.reshape((1,) * (scores.dim() - strip.dim()) + strip.shape).contiguous()
    onto = scores
    if strip.shape[0] < scores.shape[0]:  # the same for the whole batch: computed once, then added to all
        onto = scores.new_zeros(1, strip.shape[1], *scores.shape[2:])
    for part in layout.parts:
        _add_part(onto, strip, part)
    return scores if onto is scores else scores.add_(onto)


def _in_digits(scores: Tensor, part: _Part) -> Tensor:
    """The part's pairs [B, H, *rows, *columns]."""
    pairs = scores.narrow(2, part.rows.start, part.rows.count).narrow(3, part.columns.start, part.columns.count)
    return pairs.view(*pairs.shape[:2], *part.rows.sizes, *part.columns.sizes)


def _view(strip: Tensor, part: _Part, sizes: tuple[int, ...]) -> Tensor:
    """view[a, c] = strip[a, index(a, c)], the same memory; a digit that was summed over has size 1."""
    width, inner = strip.stride(-2), [prod(part.rows.sizes[level + 1 :]) for level in range(len(part.rows.sizes))]
    strides = [width * below - step for below, step in zip(inner, part.row_steps, strict=True)]
    first = strip.storage_offset() + part.rows.start * width + part.start
    return strip.as_strided(sizes, (*strip.stride()[:2], *strides, *part.column_steps), first)


def _add_part(scores: Tensor, strip: Tensor, part: _Part) -> None:
    pairs = _in_digits(scores, part)
    if strip.shape[2] == scores.shape[2] and strip.shape[2] > 1:
        pairs += _view(strip, part, (*strip.shape[:2], *pairs.shape[2:]))
        return
    dims = list(range(2, 2 + len(part.rows.sizes)))
    outer = part.rows.sizes[0]
    at_once = max(BLOCK * outer // max(prod(pairs.shape[1:]), 1), 1)
    for first in range(0, outer, at_once):  # from the last row back: then every step goes forward
        block = pairs.narrow(2, first, min(at_once, outer - first))
        last = [first + block.shape[2] - 1, *(size - 1 for size in part.rows.sizes[1:])]
        start = part.start - sum(step * digit for step, digit in zip(part.row_steps, last, strict=True))
        strides = (*strip.stride()[:2], *part.row_steps, *part.column_steps)
        rows = strip.as_strided((*strip.shape[:2], *block.shape[2:]), strides, strip.storage_offset() + start)
        block += rows.flip(dims)


def _write_part(weights: Tensor, strip: Tensor, part: _Part) -> None:
    """Into a strip with one row per row of the pairs; the strip is zero there."""
    at = 2 + len(part.rows.sizes)
    still = [at + digit for digit, step in enumerate(part.column_steps) if step == 0]
    pairs = _in_digits(weights, part)
    pairs = pairs.sum(dim=still, keepdim=True) if still else pairs
    view = _view(strip, part, tuple(pairs.shape))
    for one, into in apart(pairs, view, [(step, at + n) for n, step in enumerate(part.column_steps) if step]):
        into += one


def _sum_part(weights: Tensor, strip: Tensor, part: _Part) -> None:
    """Into a strip of one row. It sums over the digits of the rows one after the other, each value at its own place."""
    pairs, count = _in_digits(weights, part), len(part.rows.sizes)
    still = [2 + n for n, step in enumerate((*part.row_steps, *part.column_steps)) if step == 0]
    pairs = pairs.sum(dim=still, keepdim=True) if still else pairs
    reach = sum(step * (size - 1) for step, size in zip(part.column_steps, part.columns.sizes, strict=True))
    shape, columns = list(pairs.shape[: 2 + count]), list(range(2 + count, pairs.dim()))
    moving = [(step, dim - 1) for step, dim in zip(part.column_steps, columns, strict=True) if step]
    step, shape[1 + count] = part.row_steps[-1], pairs.shape[1 + count]
    size = shape.pop()
    found = pairs.new_zeros(*shape, reach + 1 + step * (size - 1))
    for digit in range(size):
        one = pairs.select(1 + count, digit)
        view = found.as_strided(one.shape, (*found.stride()[:-1], *part.column_steps), step * (size - 1 - digit))
        for some, into in apart(one, view, moving):
            into += some
    for step, size in reversed(list(zip(part.row_steps[:-1], shape[2:], strict=True))):
        wider = found.new_zeros(*found.shape[:-2], found.shape[-1] + step * (size - 1))
        for digit in range(size):
            first = step * (size - 1 - digit)
            wider.narrow(-1, first, found.shape[-1]).add_(found.select(-2, digit))
        found = wider
    first = part.start - sum(step * (size - 1) for step, size in zip(part.row_steps, part.rows.sizes, strict=True))
    strip.select(2, 0).narrow(-1, first, found.shape[-1]).add_(found)
