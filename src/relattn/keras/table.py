"""Tables: rows that belong to offsets, stored, computed or made from other tables. They are written out when needed."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal, NamedTuple, TypeAlias, get_args

from relattn.keras.installed import ops
from relattn.keras.tensors import Index, Tensor, is_known, slice_axis

Beyond = Literal["error", "clamp", "zero"]
BEYOND: tuple[Beyond, ...] = get_args(Beyond)


class OffsetTable(NamedTuple):
    """T[d] = values[:, d - first] for first <= d < first + R; outside of that, what `beyond` says.

    values: [heads or 1, R, width], or [heads or 1, R] for a bias; rows in ascending offset. first: the offset of row 0.
    beyond: "clamp" holds the edge row, "zero" adds nothing, with "error" a visible offset there is an error.
    """

    values: Tensor
    first: int
    beyond: Beyond = "error"

    @property
    def extent(self) -> tuple[int, int]:
        """The smallest and largest offset outside of which `rows` no longer changes."""
        margin = 1 if self.beyond == "zero" else 0
        return self.first - margin, self.first + self.values.shape[1] - 1 + margin

    @property
    def defined(self) -> tuple[int, int] | None:
        """The offsets that a visible pair may have; None: all."""
        return self.extent if self.beyond == "error" else None

    def rows(self, first: Index, count: Index) -> Tensor:
        """T[first], ..., T[first + count - 1]: [heads or 1, count, ...], by slices, whose gradient needs no scatter."""
        num_rows = ops.shape(self.values)[1]
        start = first - self.first
        if is_known(start, count, num_rows):
            before, after = min(max(-start, 0), count), min(max(start + count - num_rows, 0), count)
            inside = self.values[:, max(start, 0) : max(start + count - after, 0)]
            return self._between_edges(before, inside, after)
        place = ops.clip(start + count, 0, num_rows + count)
        return slice_axis(self._between_edges(count, self.values, count), 1, place, count)

    def _between_edges(self, before: Index, inside: Tensor, after: Index) -> Tensor:
        """`inside` with the table's first row `before` times in front, and the last row `after` times behind."""
        heads, _, *rest = ops.shape(self.values)
        oldest, newest = self.values[:, :1], self.values[:, -1:]
        if self.beyond == "zero":
            oldest = newest = ops.zeros_like(oldest)
        parts = [inside]
        if not (is_known(before) and before == 0):
            parts.insert(0, ops.broadcast_to(oldest, (heads, before, *rest)))
        if not (is_known(after) and after == 0):
            parts.append(ops.broadcast_to(newest, (heads, after, *rest)))
        return parts[0] if len(parts) == 1 else ops.concatenate(parts, axis=1)


class ComputedTable(NamedTuple):
    """T[d] = function(d): int32 [n] -> [heads or 1, n, width], or [heads or 1, n] for a bias. It has no end."""

    function: Callable[[Tensor], Tensor]

    extent = None
    defined = None

    def rows(self, first: Index, count: Index) -> Tensor:
        """T[first], ..., T[first + count - 1]."""
        return self.function(first + ops.arange(count, dtype="int32"))


class CombinedTable(NamedTuple):
    """T[d] from two tables: a[d] + b[d], or with `joined` [a[d]; b[d]] along the features."""

    a: Table
    b: Table
    joined: bool = False

    @property
    def extent(self) -> tuple[int, int] | None:
        """The smallest and largest offset outside of which `rows` no longer changes; None: it has no end."""
        if self.a.extent is None or self.b.extent is None:
            return None
        return min(self.a.extent[0], self.b.extent[0]), max(self.a.extent[1], self.b.extent[1])

    @property
    def defined(self) -> tuple[int, int] | None:
        """The offsets that a visible pair may have; None: all."""
        if self.a.defined is None or self.b.defined is None:
            return self.b.defined if self.a.defined is None else self.a.defined
        return max(self.a.defined[0], self.b.defined[0]), min(self.a.defined[1], self.b.defined[1])

    def rows(self, first: Index, count: Index) -> Tensor:
        """T[first], ..., T[first + count - 1]."""
        a, b = self.a.rows(first, count), self.b.rows(first, count)
        if not self.joined:
            return a + b
        heads = max(ops.shape(a)[0], ops.shape(b)[0])
        parts = [ops.broadcast_to(part, (heads, *ops.shape(part)[1:])) for part in (a, b)]
        return ops.concatenate(parts, axis=-1)


Table: TypeAlias = OffsetTable | ComputedTable | CombinedTable
