"""Padding: keys that no query may see, and queries that may see no key. Their content must not matter.

A weight of 0 does not stop a NaN or an infinity, because 0 * NaN is NaN, in the output and in every gradient. A row of
zeros does.
"""

from __future__ import annotations

from typing import NamedTuple

from relattn.keras.attend import Mask
from relattn.keras.installed import ops
from relattn.keras.positions import Positions
from relattn.keras.tensors import Tensor, is_known


class Seen(NamedTuple):
    """queries [1 or B, 1 or H, 1 or Lq]: False where a query may see no key; keys, of Lk, where no query may see a key.

    Each mask is checked by itself. So are causality and the window, where positions follow one another. A row that only
    two of them together hide counts as seen. None where no hidden row is found.
    """

    queries: Tensor | None
    keys: Tensor | None


def seen(mask: Mask, positions: Positions) -> Seen:
    """The seen rows of a call, in memory linear in the lengths beside the mask's own."""
    queries, keys = _in_reach(positions)
    if mask.queries is not None:
        queries = _both(queries, mask.queries[:, None])
    if mask.keys is not None:
        keys = _both(keys, mask.keys[:, None])
    if mask.pairs is not None:
        queries, keys = _both(queries, ops.any(mask.pairs, axis=3)), _both(keys, ops.any(mask.pairs, axis=2))
    return Seen(queries, keys)


def with_zeros(rows: Tensor, seen: Tensor | None) -> Tensor:
    """The rows [..., L, D], zero where `seen` [..., L] is False; the gradient is zero there too."""
    return rows if seen is None else ops.where(seen[..., None], rows, ops.zeros_like(rows))


def _in_reach(p: Positions) -> tuple[Tensor | None, Tensor | None]:
    """Which queries and keys have any pair by causality and window, [1, 1, L]; None: all, or positions are explicit.

    Row i has the offsets origin - i .. origin - i + Lk - 1, and column j the offsets origin + j - Lq + 1 .. origin + j.
    """
    if p.explicit or (p.lowest is None and p.highest is None):
        return None, None
    origin, across, along = p.key - p.query, p.key_length - 1, p.query_length - 1

    def meets(first: Tensor, last: Tensor) -> Tensor:
        conditions = [] if p.lowest is None else [last >= p.lowest]
        conditions += [] if p.highest is None else [first <= p.highest]
        found = conditions[0] if len(conditions) == 1 else ops.logical_and(*conditions)
        return found[None, None]

    queries = keys = None
    known = is_known(origin, across, along)
    if not known or not _within(p, origin - along + across, origin):
        rows = origin - ops.arange(p.query_length, dtype="int32")
        queries = meets(rows, rows + across)
    if not known or not _within(p, origin, origin + across - along):
        columns = origin + ops.arange(p.key_length, dtype="int32")
        keys = meets(columns - along, columns)
    return queries, keys


def _within(p: Positions, last: int, first: int) -> bool:
    """Whether every row, or column, has a pair. `last` is the smallest of their last offsets, `first` the largest of
    their first offsets.
    """
    return (p.lowest is None or last >= p.lowest) and (p.highest is None or first <= p.highest)


def _both(a: Tensor | None, b: Tensor) -> Tensor:
    return b if a is None else ops.logical_and(a, b)
