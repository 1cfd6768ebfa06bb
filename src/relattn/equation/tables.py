"""OffsetTable: rows that belong to offsets, and what holds beyond its rows."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal, NoReturn, get_args

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int64
from torch import Tensor

from relattn.checks.values import as_int, check_choice, kind_of
from relattn.errors import ShapeError
from relattn.interception import is_intercepted
from relattn.positions.certainty import are_fixed
from relattn.positions.explicit import ExplicitPositions
from relattn.positions.positions import Positions

Beyond = Literal["clamp", "zero", "error"]
BEYOND = get_args(Beyond)


def wide(values: Tensor) -> Tensor:
    """The dtype of sums: float32 for a narrower dtype, unchanged otherwise."""
    return values if values.dtype in (torch.float64, torch.float32) else values.to(torch.float32)


def gather_rows(values: Float[Tensor, "H R *F"], index: Int64[Tensor, "*n"]) -> Float[Tensor, "H *n *F"]:
    """values[:, index], with a gradient that is bit-equal on every run.

    The gradient of plain indexing sums with atomics, in an order that changes between runs. The gradient of an
    embedding look-up is deterministic, on CPUs and GPUs. Half-precision values are returned in float32, so
    that their gradients are summed in float32.
    """
    heads, count, *features = values.shape
    rows = F.embedding(index, wide(values).movedim(0, 1).reshape(count, -1))
    return rows.unflatten(-1, (heads, *features)).movedim(index.dim(), 0)


@dataclass(frozen=True)
class OffsetTable:
    """T[d] = values[:, d - first] for first <= d < first + R; outside of that, what `beyond` says.

    values: [H or 1, R, D] for relative keys, queries and values, [H or 1, R] for a bias; rows in ascending offset, row
        0 for the most distant past. One head serves all heads.
    first: the offset of row 0, an int; a 0-d int64 tensor for tables made over a span whose start is a tensor.
    beyond: "clamp" holds the edge row, "zero" adds nothing, "error" promises that no visible offset lies outside
        (`relative_attention` checks it). With "error" rows of invisible offsets may hold any finite numbers.
    """

    values: Float[Tensor, "H R *D"]
    first: int | Int64[Tensor, ""]
    beyond: Beyond = "error"

    def __post_init__(self) -> None:
        if not isinstance(self.values, Tensor) or self.values.dim() not in (2, 3) or self.values.shape[1] == 0:
            _refuse_values(self.values)
        if self.beyond not in BEYOND:
            check_choice("OffsetTable beyond", self.beyond, BEYOND)
        if type(self.first) is not int:  # nearly every table has one
            object.__setattr__(self, "first", _checked_first(self.first))
        if isinstance(self.first, Tensor) and self.beyond != "error":
            raise ValueError(
                f"OffsetTable first: got a tensor with beyond={self.beyond!r}; expected an int for a table that "
                "clamps or zeroes"
            )

    @property
    def num_rows(self) -> int:
        """R, the number of offsets that have their own row."""
        return self.values.shape[1]

    def rows(self, first: int | Int64[Tensor, ""], count: int) -> Float[Tensor, "H count *D"]:
        """T[first], T[first + 1], ..., T[first + count - 1]: a view where the table has all of them."""
        # Otherwise a graph would be compiled again for every way in which the range and the table may overlap.
        if isinstance(first, Tensor) or isinstance(self.first, Tensor) or torch.compiler.is_compiling():
            return self.at(torch.arange(count, device=self.values.device) + first)
        start, end = first - self.first, first - self.first + count
        if start == 0 and count == self.num_rows:
            return self.values
        before, after = min(max(-start, 0), count), min(max(end - self.num_rows, 0), count)
        inside = self.values[:, max(start, 0) : max(min(end, self.num_rows), 0)]
        if before == after == 0:
            return inside
        if self.beyond == "clamp":
            oldest = self.values[:, :1].expand(-1, before, *self.values.shape[2:])
            newest = self.values[:, -1:].expand(-1, after, *self.values.shape[2:])
            return torch.cat([oldest, inside, newest], dim=1)
        return F.pad(inside, (0, 0) * (self.values.dim() - 2) + (before, after))

    def narrowed(self, first: int | Int64[Tensor, ""], count: int) -> OffsetTable:
        """A view of the rows for the offsets first .. first + count - 1. For these offsets it is the same table.

        It has at least one row, so that there is still an edge row. It has all rows where a start is a tensor, or
        a number that a compiled graph leaves open.
        """
        if isinstance(first, Tensor) or isinstance(self.first, Tensor):
            return self
        if torch.compiler.is_compiling() and not are_fixed(first, count):
            return self
        rows = self.values.shape[1]
        if first <= self.first and first + count >= self.first + rows:
            return self
        start = min(max(first - self.first, 0), rows - 1)
        end = min(max(first + count - self.first, start + 1), rows)
        return OffsetTable(self.values[:, start:end], self.first + start, self.beyond)

    def of_heads(self, heads: slice) -> OffsetTable:
        """The table of some query heads, a view."""
        return self if self.values.shape[0] == 1 else OffsetTable(self.values[heads], self.first, self.beyond)

    def rows_met_by(self, positions: Positions) -> OffsetTable:
        """The table, a view without the rows on either side that no visible pair meets.

        Nothing waits for it: a start that is a tensor, positions on a GPU and those in a graph are not read. Nor does a
        graph compare the lengths that it leaves open.
        """
        p = positions
        if isinstance(p.origin, Tensor):
            return self
        if torch.compiler.is_compiling() and not are_fixed(p.origin, p.query_length, p.key_length, p.lowest, p.highest):
            return self
        if p.origin is None:
            explicit = (side.positions for side in (p.query, p.key) if isinstance(side, ExplicitPositions))
            longer = self.num_rows >= p.query_length + p.key_length
            if not longer or p.prefix_tokens != (0, 0) or p.device.type != "cpu" or is_intercepted(explicit):
                return self
        first, last = p.visible
        assert not isinstance(first, Tensor) and not isinstance(last, Tensor)
        return self.narrowed(first, max(last - first + 1, 1))

    def at(self, offsets: Int64[Tensor, "*n"]) -> Float[Tensor, "H *n *D"]:
        """T[d] for every d of `offsets`, any shape, by a gather whose gradient is deterministic."""
        index = offsets - self.first
        rows = gather_rows(self.values, index.clamp(0, self.num_rows - 1))
        if self.beyond != "zero":
            return rows
        outside = (index < 0) | (index >= self.num_rows)
        return rows.masked_fill(outside.reshape(outside.shape + (1,) * (self.values.dim() - 2)), 0.0)

    def to(self, dtype: torch.dtype) -> OffsetTable:
        """The same table in another dtype."""
        return self if self.values.dtype == dtype else OffsetTable(self.values.to(dtype), self.first, self.beyond)


def _refuse_values(values: object) -> NoReturn:
    if not isinstance(values, Tensor) or values.dim() not in (2, 3):
        came = list(values.shape) if isinstance(values, Tensor) else kind_of(values)
        raise TypeError(
            f"OffsetTable values: got {came}; expected a tensor [heads or 1, rows, width] (or [heads or 1, rows] for a "
            "bias)"
        )
    raise ValueError(f"OffsetTable values: got shape {list(values.shape)}; expected at least one row")


def _checked_first(first: Any) -> Any:
    """An int, of NumPy too, or an open one of a graph; or a 0-d int64 tensor."""
    if isinstance(first, torch.SymInt) or (
        isinstance(first, Tensor) and not first.dim() and first.dtype == torch.int64
    ):
        return first
    number = None if isinstance(first, Tensor) else as_int(first)
    if number is None:  # an open length of a compiled graph has no repr, so only the wrong argument is shown
        came = f"{first.dtype} {list(first.shape)}" if isinstance(first, Tensor) else repr(first)
        raise TypeError(f"OffsetTable first: got {came}; expected an int, or a 0-d int64 tensor")
    return number


def add_tables(a: OffsetTable, b: OffsetTable) -> OffsetTable:
    """(a + b)[d] = a[d] + b[d], wherever both are defined."""
    _check_alike(a, b, same_width=True)
    first, count, beyond = _common_extent(a, b)
    return OffsetTable(wide(a.rows(first, count)) + wide(b.rows(first, count)), first, beyond)


def join_tables(a: OffsetTable, b: OffsetTable) -> OffsetTable:
    """[a[d]; b[d]] along the feature axis, wherever both are defined."""
    _check_alike(a, b, same_width=False)
    first, count, beyond = _common_extent(a, b)
    heads = max(a.values.shape[0], b.values.shape[0])
    rows = [table.rows(first, count).expand(heads, -1, -1) for table in (a, b)]
    return OffsetTable(torch.cat(rows, dim=-1), first, beyond)


def _check_alike(a: OffsetTable, b: OffsetTable, *, same_width: bool) -> None:
    """Tables that can become one table: heads that agree or are shared, one width where they are added, one device."""
    shapes = f"{list(a.values.shape)}, {list(b.values.shape)}"
    heads = {a.values.shape[0], b.values.shape[0]} - {1}
    if len(heads) > 1:
        raise ShapeError(
            f"sum of tables: got {a.values.shape[0]} heads ({list(a.values.shape)}) and {b.values.shape[0]} heads "
            f"({list(b.values.shape)}); expected the same number, or 1 shared by all"
        )
    if same_width and a.values.shape[2:] != b.values.shape[2:]:
        widths = " and ".join(str(*t.values.shape[2:]) for t in (a, b))
        raise ShapeError(f"sum of tables: got widths {widths} ({shapes}); expected one width")
    if (a.values.dtype == torch.float64) != (b.values.dtype == torch.float64):  # narrower dtypes are added in float32
        raise TypeError(
            f"sum of tables: got dtypes {a.values.dtype} and {b.values.dtype}; expected float64 in both or in neither; "
            "convert one encoding with .to()"
        )
    if a.values.device != b.values.device:
        raise ValueError(
            f"sum of tables: got devices {a.values.device} and {b.values.device}; expected one device; move one "
            "encoding with .to()"
        )


def _common_extent(a: OffsetTable, b: OffsetTable) -> tuple[int | Tensor, int, Beyond]:
    """First offset, number of rows and `beyond` of one table that can stand for both."""
    for table in (a, b):  # a tensor start: both were made over this call's span, so use either
        if isinstance(table.first, Tensor):
            return table.first, table.num_rows, "error"
    assert not isinstance(a.first, Tensor) and not isinstance(b.first, Tensor)
    extents = [(a.first, a.first + a.num_rows, a.beyond), (b.first, b.first + b.num_rows, b.beyond)]
    refusing = [(first, end) for first, end, beyond in extents if beyond == "error"]
    if refusing:
        first, end = max(first for first, _ in refusing), min(end for _, end in refusing)
        if first >= end:
            raise ValueError(
                f"sum of tables: got rows that start and end at {refusing}, and tables that refuse offsets beyond "
                "them; expected an offset that both have; else nothing can be visible"
            )
        return first, end - first, "error"
    first, end = min(first for first, _, _ in extents), max(end for _, end, _ in extents)
    if a.beyond == b.beyond == "zero":
        return first, end - first, "zero"
    # One more row on each side: there one table may be zero while the other clamps.
    return first - 1, end - first + 2, "clamp"
