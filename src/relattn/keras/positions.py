"""Positions: where the queries and keys of a call stand, and which offsets between them it may see."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from relattn.keras.installed import ops
from relattn.keras.tensors import Index, Tensor, is_known


class Positions(NamedTuple):
    """Query i stands at query + i and key j at key + j; d = key position - query position.

    query, key: the first position of each. lowest, highest: the offsets that causality and a window leave visible;
    None without a limit.
    """

    query: Index
    key: Index
    query_length: Index
    key_length: Index
    lowest: int | None = None
    highest: int | None = None

    @property
    def first(self) -> Index:
        """The smallest offset of all pairs, that of the last query and the first key."""
        return self.key - self.query - (self.query_length - 1)

    @property
    def count(self) -> Index:
        """How many offsets the pairs have, Lq + Lk - 1."""
        return self.query_length + self.key_length - 1

    def offsets(self) -> Tensor:
        """Every offset, ascending: int32 [Lq + Lk - 1]."""
        return self.first + ops.arange(self.count, dtype="int32")

    def unless_beyond(self, first: int, last: int, message: Callable[[Index, Index], str]) -> Tensor | float:
        """0.0, if no visible offset lies outside of first..last.

        Raises ValueError with message(smallest, largest visible offset) otherwise. In a graph that does not know its
        lengths or starts no error can be raised: the number is then NaN, to be added to the scores.
        """
        smallest, largest = self.first, self.first + self.count - 1
        if is_known(smallest, largest):
            smallest = smallest if self.lowest is None else max(smallest, self.lowest)
            largest = largest if self.highest is None else min(largest, self.highest)
            if smallest <= largest and (smallest < first or largest > last):
                raise ValueError(message(smallest, largest))
            return 0.0
        smallest = smallest if self.lowest is None else ops.maximum(smallest, self.lowest)
        largest = largest if self.highest is None else ops.minimum(largest, self.highest)
        beyond = ops.logical_and(smallest <= largest, ops.logical_or(smallest < first, largest > last))
        return ops.where(beyond, float("nan"), 0.0)
