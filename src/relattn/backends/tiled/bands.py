"""One offset table over the patches of a score matrix: products spread over pairs, weights collected into rows.

A *patch* [H, n, m] is a piece of the score matrix whose offset grows by one along its rows and along its columns:
offset(a, c) = first + a + c. A tile with its queries in reverse order is a patch, and so is its transpose. A patch
needs a *band* of n + m - 1 neighbouring rows of the table. Element (a, c) needs the band's row a + c: a stride, not a
gather.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, replace
from typing import NamedTuple, Self

import torch
from jaxtyping import Float, Int64
from torch import Tensor

from relattn.backends.sums import sum_columns
from relattn.backends.tiled.scratch import Scratch
from relattn.equation.tables import OffsetTable
from relattn.positions.boxes import Box, boxes
from relattn.positions.contiguous import ContiguousPositions
from relattn.positions.grid import GridPositions

ALIGNED = 16
"""Strips are a multiple of this many numbers wide: a matrix product into rows of any other width is slower."""


class GridOffsets(NamedTuple):
    """The offsets of a patch whose rows and columns fall into boxes.

    query, key: the positions of `height` queries and `width` keys, which must form boxes. by_key: whether the keys are
        the rows, and the queries, last one first, the columns.
    """

    query: ContiguousPositions | GridPositions
    key: ContiguousPositions | GridPositions
    height: int
    width: int
    by_key: bool = False

    @property
    def rows(self) -> tuple[Box, ...]:
        """The boxes of the rows. An offset is the sum of the position in its row's box and the position in its column's
        box.
        """
        return self._of_keys if self.by_key else self._of_queries

    @property
    def columns(self) -> tuple[Box, ...]:
        """The boxes of the columns."""
        return self._of_queries if self.by_key else self._of_keys

    def seen_from(self, keys: slice) -> GridOffsets:
        """The offsets of some of the keys, with a row for each of them."""
        return GridOffsets(self.query, self.key.part(keys), self.height, keys.stop - keys.start, by_key=True)

    @property
    def _of_queries(self) -> tuple[Box, ...]:
        return tuple(box.reversed(self.height) for box in boxes(self.query, self.height))

    @property
    def _of_keys(self) -> tuple[Box, ...]:
        return boxes(self.key, self.width)


Offsets = int | Int64[Tensor, "n m"] | GridOffsets
"""The offsets of a patch: the offset of its first element where both sides' positions are contiguous; or boxes; or the
offset of every pair.
"""


def seen_from(keys: slice, offsets: Offsets) -> Offsets:
    """The offsets of some columns of a patch, with a row for each of them."""
    if isinstance(offsets, GridOffsets):
        return offsets.seen_from(keys)
    return offsets + keys.start if isinstance(offsets, int) else offsets[:, keys].t()


@dataclass(frozen=True)
class Band(ABC):
    """T[d] over patches, with `margin` more rows at each end for offsets beyond the table.

    rows [H or 1, margin + R + margin, D] (or without D for a bias): T times `factor`, the first row at offset
    `lowest - margin`. columns [H or 1, D, rows]: the same, transposed. gradient: where `collect` adds up, laid out like
    `columns`; None where it is not wanted.
    """

    rows: Float[Tensor, "H R *D"]
    columns: Float[Tensor, "H D R"] | None
    gradient: Float[Tensor, "H *D R"] | None
    lowest: int
    highest: int
    margin: int
    clamps: bool
    factor: float
    scratch: Scratch

    def for_heads(self, heads: slice) -> Self:
        """The band of some of the heads."""
        if self.rows.shape[0] == 1:
            return self
        return replace(
            self,
            rows=self.rows[heads],
            columns=None if self.columns is None else self.columns[heads],
            gradient=None if self.gradient is None else self.gradient[heads],
        )

    @abstractmethod
    def spread(self, scores: Float[Tensor, "H n m"], x: Float[Tensor, "H n D"] | None, offsets: Offsets) -> None:
        """scores[a, c] += x_a . T[offset(a, c)], in place; x is None for a bias."""

    @abstractmethod
    def collect(
        self,
        weights: Float[Tensor, "H n m"],
        x: Float[Tensor, "H n D"] | None,
        offsets: Offsets,
        sums: Float[Tensor, "H n D"] | None,
    ) -> None:
        """The transpose of `spread`: sums[a] += sum_c weights[a, c] T[offset(a, c)], where sums are given.

        And where the band has a gradient, that of T[offset(a, c)] grows by sum_a weights[a, c] x_a.
        """

    def _strip(self, x: Float[Tensor, "H n D"], start: int, width: int) -> Float[Tensor, "H n width"]:
        """x_a . rows[start + m] for every m < width."""
        assert self.columns is not None
        columns = self.columns[:, :, start : start + width].expand(x.shape[0], -1, -1)
        return torch.bmm(x, columns, out=self.scratch.take("strip", *x.shape[:2], width))

    def _collect_strip(self, strip: Float[Tensor, "H n width"], x: Tensor | None, start: int, sums: Tensor | None):
        """`collect` for weights that are already summed by row of the band: strip[a, m] belongs to rows[start + m]."""
        width = strip.shape[2]
        if self.gradient is not None:
            gradient = self.gradient[..., start : start + width]
            shared = gradient.shape[0] == 1
            if x is None:
                gradient += strip.sum(dim=(0, 1)) if shared else strip.sum(dim=1)
            elif shared:
                gradient[0] += x.reshape(-1, x.shape[2]).t() @ strip.reshape(-1, width)
            else:
                gradient += torch.bmm(x.transpose(1, 2), strip)
        if sums is not None:
            sums.baddbmm_(strip, self.rows[:, start : start + width].expand(strip.shape[0], -1, -1))

    def table_gradient(self, table: OffsetTable) -> Float[Tensor, "H R *D"]:
        """The gradient of the table's own rows. The gradient of a margin belongs to its edge row, which clamps."""
        assert self.gradient is not None and isinstance(table.first, int)
        margin, count = self.margin, self.highest - self.lowest + 1
        own = self.gradient[..., margin : margin + count]
        if self.clamps:
            own[..., 0] += self.gradient[..., :margin].sum(dim=-1)
            own[..., -1] += self.gradient[..., margin + count :].sum(dim=-1)
        whole = torch.zeros(table.values.shape, dtype=own.dtype, device=own.device)
        whole[:, self.lowest - table.first : self.lowest - table.first + count] = own.movedim(-1, 1) * self.factor
        return whole.to(table.values.dtype)


class DiagonalBand(Band):
    """Contiguous positions: `offsets` is the offset of the patch's first element.

    Where the whole height of a patch lies beyond the table, its part is one constant per row, without a product.
    """

    def spread(self, scores: Tensor, x: Tensor | None, offsets: Offsets) -> None:
        """Read the strip of products through a stride; beyond the table, add the edge row's product."""
        assert isinstance(offsets, int)
        before, after = self._near(scores, offsets)
        for columns, row in self._far(scores, before, after):
            columns += self._constant(x, row)
        if before < after:
            patch, first = scores[:, :, before:after], offsets + before
            if x is None:
                patch += _reading(self.rows[:, self._row(first) :].unsqueeze(1), patch, row_step=1)
            else:
                strip = self._strip(x, self._row(first), _strip_width(patch))
                patch += _reading(strip, patch, row_step=strip.shape[2] + 1)

    def collect(self, weights: Tensor, x: Tensor | None, offsets: Offsets, sums: Tensor | None) -> None:
        """Lay the weights into a strip through a stride; beyond the table, add them up."""
        if self.gradient is None and sums is None:
            return
        assert isinstance(offsets, int)
        before, after = self._near(weights, offsets)
        for columns, row in self._far(weights, before, after):
            self._collect_strip(columns.sum(dim=2, keepdim=True), x, row, sums)
        if before < after:
            patch = weights[:, :, before:after]
            strip = self.scratch.take("strip", *patch.shape[:2], _strip_width(patch)).zero_()
            _reading(strip, patch, row_step=strip.shape[2] + 1).copy_(patch)
            self._collect_strip(strip, x, self._row(offsets + before), sums)

    def _near(self, patch: Tensor, first: int) -> tuple[int, int]:
        """The columns [before, after) in which any row's offset lies inside the table, without a clamped edge."""
        _, height, width = patch.shape
        edge = 1 if self.clamps else 0  # a clamped table's edge row is already the constant
        before = min(max(self.lowest - first - height + 1 + edge, 0), width)
        after = min(max(self.highest - first + 1 - edge, before), width)
        return before, after

    def _far(self, patch: Tensor, before: int, after: int) -> list[tuple[Tensor, int]]:
        """The columns completely beyond the table on each side, and the row of `rows` that holds there."""
        if not self.clamps:
            return []
        sides = [
            (patch[:, :, :before], self._row(self.lowest)),
            (patch[:, :, after:], self._row(self.highest)),
        ]
        return [(columns, row) for columns, row in sides if columns.shape[2]]

    def _constant(self, x: Tensor | None, row: int) -> Float[Tensor, "#H #n 1"]:
        """x_a . rows[row]."""
        if x is None:
            return self.rows[:, row, None, None]
        assert self.columns is not None
        return x @ self.columns[:, :, row : row + 1]

    def _row(self, offset: int) -> int:
        return offset - self.lowest + self.margin


class PairBand(Band):
    """Explicit positions: `offsets` holds the offset of every pair, and every pair looks its row up."""

    def spread(self, scores: Tensor, x: Tensor | None, offsets: Offsets) -> None:
        """Gather from the strip of products."""
        index = self._index(offsets)
        if x is None:
            scores += self.rows[:, index]
            return
        start, width = self._extent(index)
        scores += self._strip(x, start, width).gather(2, (index - start).expand(scores.shape))

    def collect(self, weights: Tensor, x: Tensor | None, offsets: Offsets, sums: Tensor | None) -> None:
        """Sum the weights by row."""
        if self.gradient is None and sums is None:
            return
        index = self._index(offsets)
        start, width = self._extent(index)
        self._collect_strip(sum_columns(weights, (index - start).expand(weights.shape), width), x, start, sums)

    def _index(self, offsets: Offsets) -> Int64[Tensor, "n m"]:
        assert isinstance(offsets, Tensor)
        return (offsets - self.lowest + self.margin).clamp(0, self.rows.shape[1] - 1)

    def _extent(self, index: Tensor) -> tuple[int, int]:
        """The first of the rows that the pairs look up, and the number of rows from the first to the last."""
        first, last = (int(end) for end in index.aminmax())
        return first, last - first + 1


def _strip_width(patch: Tensor) -> int:
    """The rows of a band for `patch`, rounded up."""
    return -(-(patch.shape[1] + patch.shape[2] - 1) // ALIGNED) * ALIGNED


def _reading(strip: Float[Tensor, "#H n W"], patch: Float[Tensor, "H n m"], row_step: int) -> Float[Tensor, "#H n m"]:
    """view[a, c] = strip[a, a + c], the same memory; with row_step 1 every row reads the one row of `strip`."""
    size = (strip.shape[0], *patch.shape[1:])
    return strip.as_strided(size, (strip.stride(0), row_step, 1), strip.storage_offset())
