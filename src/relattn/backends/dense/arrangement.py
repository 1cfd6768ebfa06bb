"""How the products with a table's rows become scores, and weights become sums over its rows.

A *strip* [..., L, R] holds one number for every query (or key) and each row of a table. The score matrix [..., L, L']
holds one number per pair. `spread` takes the strip to the pairs, and `collect` is its transpose.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple, Protocol

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int64
from torch import Tensor

from relattn.backends.dense.boxes import InBoxes
from relattn.backends.dense.skew import strided_strip, strided_view
from relattn.backends.sums import sum_columns
from relattn.equation.tables import OffsetTable
from relattn.interception import in_forward_mode, under_torch_func
from relattn.positions.positions import Positions


class Arrangement(Protocol):
    """The rows of one table, and the way between its strip and the pairs."""

    @property
    def rows(self) -> Float[Tensor, "H R *D"]:
        """The rows that the columns of a strip belong to."""
        ...

    def bias_strip(self, height: int) -> Float[Tensor, "H L R"]:
        """The strip of a bias: the rows for each of `height` queries, or once if `added` takes them for all."""
        ...

    def spread(self, strip: Float[Tensor, "#B #H L R"]) -> Float[Tensor, "#B #H L Lk"]:
        """score[i, j] = strip[i, row of the pair's offset]."""
        ...

    def added(self, scores: Float[Tensor, "B H L Lk"], strip: Float[Tensor, "#B #H #L R"]) -> Float[Tensor, "B H L Lk"]:
        """scores + spread(strip), in place where nothing watches the call."""
        ...

    def collect(self, weights: Float[Tensor, "B H L Lk"]) -> Float[Tensor, "B H L R"]:
        """strip[i, row] = the sum of weights[i, j] over the pairs whose offset has that row."""
        ...


def arrange_by_query(
    table: OffsetTable, positions: Positions, dtype: torch.dtype, *, collects: bool = True
) -> Arrangement:
    """For a strip with one row of numbers per query, and rows in `dtype`: relative keys, relative values, bias.

    collects: whether numbers are also laid into a strip, as weights and gradients are.
    """
    if positions.origin is None:
        return _in_boxes(table, positions, dtype, by_key=False) or _Pairs.of(table.to(dtype), positions.offsets())
    num_queries, num_keys = positions.query_length, positions.key_length
    first, width = positions.origin - num_queries + 1, _width(num_queries, num_keys)
    if positions.highest is not None and positions.known_origin is not None and not torch.compiler.is_compiling():
        needed = positions.highest - positions.known_origin + num_queries  # strips end at the last visible offset
        width = max(min(width, needed), _narrowest(num_queries, num_keys, collects))
    table = table.narrowed(first, width).to(dtype)
    margins = _Margins.of(table, first, width)
    if margins is not None and (num_queries == 1 or 2 * table.num_rows <= width):
        return _Diagonals(table.rows(table.first, table.num_rows), num_keys, margins)
    return _Diagonals(table.rows(first, width), num_keys)


def arrange_by_key(table: OffsetTable, positions: Positions, dtype: torch.dtype) -> Arrangement:
    """For a strip with one row of numbers per key, spread to [..., Lk, Lq], and rows in `dtype`: relative queries.

    Seen from the keys the offset falls along a row, so the table's rows are reversed.
    """
    if positions.origin is None:
        found = _in_boxes(table, positions, dtype, by_key=True)
        return found or _Pairs.of(table.to(dtype), positions.offsets().transpose(-1, -2))
    num_queries, num_keys = positions.query_length, positions.key_length
    width = _width(num_keys, num_queries)
    first = positions.origin + num_keys - width
    return _Diagonals(table.narrowed(first, width).to(dtype).rows(first, width).flip(1), num_queries)


def _in_boxes(table: OffsetTable, positions: Positions, dtype: torch.dtype, *, by_key: bool) -> InBoxes | None:
    """Boxes, where positions form boxes; None for explicit positions, and where something watches the call.

    A graph with open lengths has no boxes, and transforms batch strips and scores separately.
    """
    if torch.compiler.is_compiling() or under_torch_func() or in_forward_mode():
        return None
    return InBoxes.of(table, positions, dtype, by_key=by_key)


def add(scores: Float[Tensor, "B Hq Lq Lk"], more: Float[Tensor, "#B #Hq #Lq Lk"]) -> Float[Tensor, "B Hq Lq Lk"]:
    """scores + more, in place. Not in place under transforms of torch.func, because vmap may batch only `more`."""
    return scores + more if under_torch_func() else scores.add_(more)


def _width(num_rows: int, num_columns: int) -> int:
    """The number of columns of a strip, one per diagonal.

    In a compiled graph always one column more: finding the narrowest would compare open lengths and add a guard.
    """
    if torch.compiler.is_compiling():
        return num_rows + num_columns
    return max(num_rows + num_columns - 1, _narrowest(num_rows, num_columns, True))


def _narrowest(num_rows: int, num_columns: int, collects: bool) -> int:
    """The width of the narrowest strip from which pairs can be read, or into which they can be laid."""
    return max(num_columns + 1 if collects and num_rows > 1 else num_columns, 1)


class _Margins(NamedTuple):
    """The columns of a strip whose offsets lie before and after a table's rows.

    There is one product per row of the table. Then the column of the edge is repeated (or is zero); there is no product
    for each copy of an edge row. So for one query no part of the table is copied, and for a clipped table there are few
    products.
    """

    before: int
    after: int
    clamped: bool

    @classmethod
    def of(cls, table: OffsetTable, first: int | Tensor, width: int) -> _Margins | None:
        """None for a bias, whose rows already are a strip, and where a margin is not certain."""
        if torch.compiler.is_compiling() or table.values.dim() == 2 or table.num_rows == width:
            return None
        if isinstance(first, Tensor) or isinstance(table.first, Tensor):
            return None
        before, after = table.first - first, first + width - table.first - table.num_rows
        if min(before, after) < 0 or before == after == 0:
            return None
        return cls(before, after, table.beyond == "clamp")

    def add(self, strip: Float[Tensor, "#B #H L R"]) -> Float[Tensor, "#B #H L W"]:
        """The strip with its margins."""
        if not self.clamped:
            return F.pad(strip, (self.before, self.after))
        parts = [strip]
        if self.before:
            parts.insert(0, strip.narrow(-1, 0, 1).expand(*strip.shape[:-1], self.before))
        if self.after:
            parts.append(strip.narrow(-1, strip.shape[-1] - 1, 1).expand(*strip.shape[:-1], self.after))
        return torch.cat(parts, dim=-1)

    def fold(self, strip: Float[Tensor, "B H L W"]) -> Float[Tensor, "B H L R"]:
        """The transpose of `add`: the margins summed into the edge columns, or dropped."""
        count = strip.shape[-1] - self.before - self.after
        oldest, inside, newest = strip.split([self.before, count, self.after], dim=-1)
        if not self.clamped:
            return inside
        inside = inside.clone()
        if self.before:
            inside[..., :1] += oldest.sum(-1, keepdim=True)
        if self.after:
            inside[..., -1:] += newest.sum(-1, keepdim=True)
        return inside


@dataclass(frozen=True)
class _Diagonals:
    """Contiguous positions: row m belongs to diagonal m, and pairs read the strip through a stride."""

    rows: Tensor
    num_columns: int
    margins: _Margins | None = None

    def spread(self, strip: Tensor) -> Tensor:
        return strided_view(strip if self.margins is None else self.margins.add(strip), self.num_columns)

    def bias_strip(self, height: int) -> Tensor:
        return self.rows.unsqueeze(-2).expand(-1, height, -1)

    def added(self, scores: Tensor, strip: Tensor) -> Tensor:
        return add(scores, self.spread(strip))

    def collect(self, weights: Tensor) -> Tensor:
        if self.margins is None:
            return strided_strip(weights, self.rows.shape[1])
        width = self.margins.before + self.rows.shape[1] + self.margins.after
        return self.margins.fold(strided_strip(weights, width))


@dataclass(frozen=True)
class _Pairs:
    """Explicit positions: every pair looks its row up; index [1 or B, 1, L, L'].

    In forward mode by PyTorch's operations, for torch.compile takes no Function with a jvp. On CUDA their gradients
    are not deterministic.
    """

    rows: Tensor
    index: Int64[Tensor, "#B 1 L Lk"]

    @classmethod
    def of(cls, table: OffsetTable, offsets: Int64[Tensor, "*B L Lk"]) -> _Pairs:
        rows, index = table.values, offsets - table.first
        if table.beyond == "zero":  # an extra row of zeros holds for every offset outside of the table
            outside = (index < 0) | (index >= table.num_rows)
            index = index.masked_fill(outside, table.num_rows)
            rows = F.pad(rows, (0, 0) * (rows.dim() - 2) + (0, 1))
        index = index.clamp(0, rows.shape[1] - 1)
        return cls(rows, index.unsqueeze(1) if index.dim() == 3 else index[None, None])

    def spread(self, strip: Tensor) -> Tensor:
        batch, heads, length, _ = strip.shape if strip.dim() == 4 else (1, *strip.shape)
        (batch,) = torch.broadcast_shapes((batch,), self.index.shape[:1])  # an empty batch stays empty
        strip, index = strip.expand(batch, heads, length, -1), self.index.expand(batch, heads, -1, -1)
        if in_forward_mode():
            return strip.gather(-1, index)
        return _GatherColumns.apply(strip, index)  # pyright: ignore[reportReturnType]

    def bias_strip(self, height: int) -> Tensor:
        return self.rows.unsqueeze(-2).expand(-1, height, -1)

    def added(self, scores: Tensor, strip: Tensor) -> Tensor:
        return add(scores, self.spread(strip))

    def collect(self, weights: Tensor) -> Tensor:
        index = self.index.expand(*weights.shape[:2], -1, -1)
        if in_forward_mode():
            return weights.new_zeros(*weights.shape[:-1], self.rows.shape[1]).scatter_add(-1, index, weights)
        return _SumColumns.apply(weights, index, self.rows.shape[1])  # pyright: ignore[reportReturnType]


class _GatherColumns(torch.autograd.Function):
    """strip.gather(-1, index), with a deterministic gradient."""

    generate_vmap_rule = True

    @staticmethod
    def forward(strip: Tensor, index: Tensor) -> Tensor:
        return strip.gather(-1, index)

    @staticmethod
    def setup_context(ctx, inputs: tuple[Tensor, Tensor], output: Tensor) -> None:
        strip, index = inputs
        ctx.save_for_backward(index)
        ctx.count = strip.shape[-1]

    @staticmethod
    def backward(ctx, gradient: Tensor):
        (index,) = ctx.saved_tensors
        return _SumColumns.apply(gradient, index, ctx.count), None


class _SumColumns(torch.autograd.Function):
    generate_vmap_rule = True

    @staticmethod
    def forward(weights: Tensor, index: Tensor, count: int) -> Tensor:
        return sum_columns(weights, index, count)

    @staticmethod
    def setup_context(ctx, inputs: tuple[Tensor, Tensor, int], output: Tensor) -> None:
        ctx.save_for_backward(inputs[1])

    @staticmethod
    def backward(ctx, gradient: Tensor):
        (index,) = ctx.saved_tensors
        return _GatherColumns.apply(gradient, index), None, None
