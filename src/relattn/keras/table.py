"""OffsetTable: rows that belong to offsets; beyond the last of them the edge row holds."""

from __future__ import annotations

from typing import NamedTuple

from relattn.keras.installed import ops
from relattn.keras.tensors import Index, Tensor, is_known, slice_axis


class OffsetTable(NamedTuple):
    """T[d] = values[:, d - first], rows in ascending offset; the first and the last row hold beyond the ends.

    values: [heads or 1, R, width], or [heads or 1, R] for a bias. first: the offset of row 0.
    """

    values: Tensor
    first: Index

    def rows(self, first: Index, count: Index) -> Tensor:
        """T[first], ..., T[first + count - 1]: [heads or 1, count, ...], by slices, whose gradient scatters nothing."""
        num_rows = ops.shape(self.values)[1]
        start = first - self.first
        if is_known(start, count, num_rows):
            before, after = min(max(-start, 0), count), min(max(start + count - num_rows, 0), count)
            inside = self.values[:, max(start, 0) : max(start + count - after, 0)]
            return self._between_edges(before, inside, after)
        place = ops.clip(start + count, 0, num_rows + count)
        return slice_axis(self._between_edges(count, self.values, count), 1, place, count)

    def _between_edges(self, before: Index, inside: Tensor, after: Index) -> Tensor:
        """`inside` with the table's first row `before` times ahead of it, and the last row `after` times behind it."""
        heads, _, *rest = ops.shape(self.values)
        parts = [inside]
        if not (is_known(before) and before == 0):
            parts.insert(0, ops.broadcast_to(self.values[:, :1], (heads, before, *rest)))
        if not (is_known(after) and after == 0):
            parts.append(ops.broadcast_to(self.values[:, -1:], (heads, after, *rest)))
        return parts[0] if len(parts) == 1 else ops.concatenate(parts, axis=1)
