"""How the products with a table's rows become scores, and weights become sums over its rows.

A *strip* [..., L, R] holds, for every query (or key), one number for each row of a table; the score matrix [..., L, L']
holds one for each pair. `spread` takes the strip to the pairs, `collect` is its transpose.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int64
from torch import Tensor

from relattn.backends.skew import strided_strip, strided_view, sum_columns
from relattn.score.positions import Positions
from relattn.score.table import OffsetTable


class Arrangement(Protocol):
    """The rows of one table, and the way between its strip and the pairs."""

    @property
    def rows(self) -> Float[Tensor, "H R *D"]:
        """The rows that the columns of a strip belong to."""
        ...

    def spread(self, strip: Float[Tensor, "#B #H L R"]) -> Float[Tensor, "#B #H L Lk"]:
        """score[i, j] = strip[i, row of the pair's offset]."""
        ...

    def collect(self, weights: Float[Tensor, "B H L Lk"]) -> Float[Tensor, "B H L R"]:
        """strip[i, row] = the sum of weights[i, j] over the pairs whose offset has that row."""
        ...


def arrange_by_query(table: OffsetTable, positions: Positions) -> Arrangement:
    """For a strip with a row of numbers per query: relative keys, relative values, bias."""
    if not positions.contiguous:
        return _Pairs.of(table, positions.offsets())
    first, num_queries, num_keys = positions.first_diagonal, positions.query_length, positions.key_length
    width = num_queries + num_keys - 1
    if positions.highest is not None and isinstance(first, int):
        width = min(width, positions.highest - first + 1)
    width = max(width, num_keys + 1)
    return _Diagonals(table.rows(first, width), num_keys)


def arrange_by_key(table: OffsetTable, positions: Positions) -> Arrangement:
    """For a strip with a row of numbers per key, spread to [..., Lk, Lq]: relative queries.

    Seen from the keys the offset falls along a row, so the table's rows run backwards.
    """
    if not positions.contiguous:
        return _Pairs.of(table, positions.offsets().transpose(-1, -2))
    num_queries, num_keys = positions.query_length, positions.key_length
    last = positions.first_diagonal + num_queries + num_keys - 2
    width = max(num_queries + num_keys - 1, num_queries + 1)
    return _Diagonals(table.rows(last - width + 1, width).flip(1), num_queries)


@dataclass(frozen=True)
class _Diagonals:
    """Contiguous positions: row m belongs to diagonal m, and the pairs read the strip through a stride."""

    rows: Tensor
    num_columns: int

    def spread(self, strip: Tensor) -> Tensor:
        return strided_view(strip, self.num_columns)

    def collect(self, weights: Tensor) -> Tensor:
        return strided_strip(weights, self.rows.shape[1])


@dataclass(frozen=True)
class _Pairs:
    """Explicit positions: every pair looks its row up; index [1 or B, 1, L, L']."""

    rows: Tensor
    index: Int64[Tensor, "#B 1 L Lk"]

    @classmethod
    def of(cls, table: OffsetTable, offsets: Int64[Tensor, "*B L Lk"]) -> _Pairs:
        rows, index = table.values, offsets - table.first
        if table.beyond == "zero":  # an extra row of zeros serves every offset outside of the table
            outside = (index < 0) | (index >= table.num_rows)
            index = index.masked_fill(outside, table.num_rows)
            rows = F.pad(rows, (0, 0) * (rows.dim() - 2) + (0, 1))
        index = index.clamp(0, rows.shape[1] - 1)
        return cls(rows, index.unsqueeze(1) if index.dim() == 3 else index[None, None])

    def spread(self, strip: Tensor) -> Tensor:
        batch, heads, length, _ = strip.shape if strip.dim() == 4 else (1, *strip.shape)
        batch = max(batch, self.index.shape[0])
        index = self.index.expand(batch, heads, -1, -1)
        return _GatherColumns.apply(strip.expand(batch, heads, length, -1), index)  # pyright: ignore[reportReturnType]

    def collect(self, weights: Tensor) -> Tensor:
        index = self.index.expand(*weights.shape[:2], -1, -1)
        return _SumColumns.apply(weights, index, self.rows.shape[1])  # pyright: ignore[reportReturnType]


class _GatherColumns(torch.autograd.Function):
    """strip.gather(-1, index), whose gradient sums in a fixed order."""

    @staticmethod
    def forward(ctx, strip: Tensor, index: Tensor) -> Tensor:
        ctx.save_for_backward(index)
        ctx.count = strip.shape[-1]
        return strip.gather(-1, index)

    @staticmethod
    def backward(ctx, gradient: Tensor):
        (index,) = ctx.saved_tensors
        return _SumColumns.apply(gradient, index, ctx.count), None


class _SumColumns(torch.autograd.Function):
    """sum_columns, differentiable."""

    @staticmethod
    def forward(ctx, weights: Tensor, index: Tensor, count: int) -> Tensor:
        ctx.save_for_backward(index)
        return sum_columns(weights, index, count)

    @staticmethod
    def backward(ctx, gradient: Tensor):
        (index,) = ctx.saved_tensors
        return _GatherColumns.apply(gradient, index), None, None
