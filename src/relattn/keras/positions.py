"""Positions: where the queries and keys of a call stand, and which offsets between them it may see."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from relattn.errors import UnsupportedError
from relattn.keras.installed import ops
from relattn.keras.tensors import Index, Place, Tensor, is_explicit, is_known, numbers_of

LONGEST_SPAN = 2**24
"""More rows than any sequence needs. Only gaps between explicit positions give so many, and every row costs memory."""


class Positions(NamedTuple):
    """d_ij = position of key j - position of query i, visible where lowest <= d <= highest.

    query, key: the position of the first element, with the others following one by one; or the position of each, int32
        [L] or [B, L].
    query_length, key_length: the number of elements.
    lowest, highest: the limits that causality and a window set; None without a limit.
    """

    query: Place
    key: Place
    query_length: Index
    key_length: Index
    lowest: int | None = None
    highest: int | None = None

    @property
    def explicit(self) -> bool:
        """Whether a side has explicit positions: then an offset is not a diagonal of the scores."""
        return is_explicit(self.query) or is_explicit(self.key)

    @property
    def first(self) -> Index:
        """The smallest offset of all pairs, that of the last query and the first key; not for explicit positions."""
        return self.key - self.query - (self.query_length - 1)

    @property
    def count(self) -> Index:
        """The number of offsets of the pairs, Lq + Lk - 1; only without explicit positions."""
        return self.query_length + self.key_length - 1

    def query_positions(self) -> Tensor:
        """The position of every query, int32 [1 or B, Lq]."""
        return _every_position(self.query, self.query_length)

    def key_positions(self) -> Tensor:
        """The position of every key, int32 [1 or B, Lk]."""
        return _every_position(self.key, self.key_length)

    def extremes(self) -> tuple[int, int] | None:
        """The smallest and the largest visible offset; the first is larger than the second where there is none.

        None where they are only known when the graph runs. Explicit positions are read, which waits for their device.
        """
        if self.explicit:
            return self._explicit_extremes()
        smallest, largest = self.first, self.first + self.count - 1
        if not is_known(smallest, largest):
            return None
        smallest = smallest if self.lowest is None else max(smallest, self.lowest)
        return smallest, largest if self.highest is None else min(largest, self.highest)

    def _explicit_extremes(self) -> tuple[int, int] | None:
        """The same from the nearest and the furthest key that each query can see."""
        queries = _known_positions(self.query, self.query_length)
        keys = _known_positions(self.key, self.key_length)
        if queries is None or keys is None:
            return None
        smallest, largest = [], []
        for i in range(max(len(queries), len(keys))):
            query, key = queries[i % len(queries)], np.sort(keys[i % len(keys)])
            begin = 0 if self.lowest is None else np.searchsorted(key, query + self.lowest)
            end = len(key) if self.highest is None else np.searchsorted(key, query + self.highest, side="right")
            begin, end = np.broadcast_to(begin, query.shape), np.broadcast_to(end, query.shape)
            seeing = begin < end
            smallest.extend(key[begin[seeing]] - query[seeing])
            largest.extend(key[end[seeing] - 1] - query[seeing])
        return (int(min(smallest)), int(max(largest))) if smallest else (0, -1)

    def explicit_span(self) -> tuple[int, int]:
        """The extremes of a call with explicit positions (offset 0 if nothing is visible), for a table without end."""
        extremes = self.extremes()
        if extremes is None:
            raise UnsupportedError(
                "query_position, key_position: got explicit positions whose values exist only while the graph runs, "
                "and an encoding that reads them for the rows it needs; give starts, or use an encoding whose table "
                "has an end"
            )
        smallest, largest = extremes
        if largest - smallest >= LONGEST_SPAN:
            raise ValueError(
                f"query_position, key_position: offsets {smallest}..{largest} are visible, more than the "
                f"{LONGEST_SPAN} that an encoding makes rows for; set a window, or number the positions with smaller "
                "gaps"
            )
        return extremes if smallest <= largest else (0, 0)

    def check_within(self, first: int, last: int, message: Callable[[int, int], str]) -> None:
        """No visible offset is known to lie outside of first..last; else ValueError with message(smallest, largest)."""
        extremes = self.extremes()
        if extremes is not None and extremes[0] <= extremes[1] and (extremes[0] < first or extremes[1] > last):
            raise ValueError(message(*extremes))

    def nan_beyond(self, first: int, last: int) -> Tensor | None:
        """For cases that `check_within` cannot decide: NaN if a visible offset lies outside of first..last, else 0.

        None where everything is known. Not for explicit positions: their pairs are checked one by one.
        """
        smallest, largest = self.first, self.first + self.count - 1
        if is_known(smallest, largest):
            return None
        smallest = smallest if self.lowest is None else ops.maximum(smallest, self.lowest)
        largest = largest if self.highest is None else ops.minimum(largest, self.highest)
        beyond = ops.logical_and(smallest <= largest, ops.logical_or(smallest < first, largest > last))
        return ops.where(beyond, float("nan"), 0.0)


def reach(place: Place, length: Index) -> Index:
    """The largest position of `length` elements + 1; a tensor where it is only known when the graph runs.

    Positions that are tensors are read.
    """
    numbers = np.asarray(place) if is_known(place) else numbers_of(place)
    if is_explicit(place):
        if numbers is None:
            return ops.max(place) + 1
        return int(numbers.max()) + 1 if numbers.size else 0
    return (place if numbers is None else int(numbers)) + length


def _every_position(place: Place, length: Index) -> Tensor:
    if not is_explicit(place):
        return (place + ops.arange(length, dtype="int32"))[None]
    return place[None] if len(place.shape) == 1 else place


def _known_positions(place: Place, length: Index) -> np.ndarray | None:
    """The positions, read: int64 [1 or B, L]; None where they are only known when the graph runs."""
    numbers = np.asarray(place) if is_known(place) else numbers_of(place)
    if numbers is None or (numbers.ndim == 0 and not is_known(length)):
        return None
    numbers = numbers.astype("int64")
    return np.atleast_2d(numbers if numbers.ndim else numbers + np.arange(length))
