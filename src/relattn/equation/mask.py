"""Mask: causality, window, key mask, segments and the mask of pairs as one object."""

from __future__ import annotations

from dataclasses import dataclass
from functools import reduce
from typing import TYPE_CHECKING

import torch
from jaxtyping import Bool, Float, Int, Shaped
from torch import Tensor

from relattn.positions.certainty import statically_true
from relattn.positions.positions import Positions

if TYPE_CHECKING:
    from relattn.equation.visible_blocks import Blocks

Segments = Int[Tensor, "*B L"] | tuple[Int[Tensor, "*B Lq"], Int[Tensor, "*B Lk"]]
AttentionMask = Bool[Tensor, "*#B #Hq #Lq #Lk"] | Float[Tensor, "*#B #Hq #Lq #Lk"]


@dataclass(frozen=True)
class Mask:
    """Which pairs may attend, and what a float mask of pairs adds to their scores.

    positions: they carry the limits that causality and window set on the offset.
    key_mask [B, Lk]: True keeps a key.
    segments ([B, Lq], [B, Lk]): a pair attends only where both ids are equal.
    pairs: boolean (True attends) or float (added to the scores; -inf forbids), broadcastable to [B, Hq, Lq, Lk],
        4-d.
    blocks: what blocks of these masks see, where the caller found it; a part of the mask leaves it out.
    """

    positions: Positions
    key_mask: Bool[Tensor, "B Lk"] | None = None
    segments: tuple[Int[Tensor, "B Lq"], Int[Tensor, "B Lk"]] | None = None
    pairs: Bool[Tensor, "#B #Hq #Lq #Lk"] | Float[Tensor, "#B #Hq #Lq #Lk"] | None = None
    blocks: Blocks | None = None

    def limits_positions(self) -> bool:
        """Whether causality or window forbid any pair. With starts given as ints this needs no look at a pair."""
        return not (self.positions.lowest is None and self.positions.highest is None)

    def hidden(self) -> Bool[Tensor, "#B #Hq #Lq #Lk"] | None:
        """True where a pair may not attend; None where every pair may."""
        kept, beyond = self.kept(), self.beyond_limits()
        if kept is None:
            return beyond
        return ~kept if beyond is None else beyond | ~kept

    def kept(self) -> Bool[Tensor, "#B #Hq #Lq #Lk"] | None:
        """True where key mask, segments and the mask of pairs let a pair attend; None where none of them is given."""
        parts = []
        if self.key_mask is not None:
            parts.append(self.key_mask[:, None, None, :])
        if self.segments is not None:
            query_ids, key_ids = self.segments
            parts.append((query_ids.unsqueeze(-1) == key_ids.unsqueeze(-2)).unsqueeze(1))
        if self.pairs is not None:
            parts.append(self.pairs if self.pairs.dtype == torch.bool else self.pairs != -torch.inf)
        return reduce(torch.logical_and, parts) if parts else None

    def part(self, queries: slice, keys: slice, heads: slice = slice(None), batch: int | None = None) -> Mask:
        """The mask of some of the queries and keys, under some query heads of every batch element or of one."""
        one = slice(None) if batch is None else slice(batch, batch + 1)
        segments = self.segments
        return Mask(
            positions=self.positions.part(queries, keys, batch),
            key_mask=None if self.key_mask is None else self.key_mask[one, keys],
            segments=None if segments is None else (segments[0][one, queries], segments[1][one, keys]),
            pairs=None if self.pairs is None else part_of_axes(self.pairs, one, heads, queries, keys),
        )

    def may_leave_out(self) -> tuple[bool, bool]:
        """Whether there might be a key that no query sees, and a query that sees no key.

        Only lengths and starts are used.
        """
        positions = self.positions
        if self.key_mask is not None or self.segments is not None or self.pairs is not None:
            return (False, False) if self._meets_itself() else (True, True)
        lowest, highest, first_with_first = positions.lowest, positions.highest, positions.known_origin
        if positions.key_length == 0:
            return True, True
        if lowest is None and highest is None:
            return False, False
        if first_with_first is None:
            return True, True
        last_with_last = first_with_first + positions.key_length - positions.query_length
        keys = queries = False
        holds = statically_true if torch.compiler.is_compiling() else bool  # as in `Positions`
        if highest is not None:  # the last key lies ahead of the last query; the first key ahead of the first query
            keys, queries = not holds(last_with_last <= highest), not holds(first_with_first <= highest)
        if lowest is not None:  # the first key lies too far behind the first query; the last key behind the last query
            keys = keys or not holds(first_with_first >= lowest)
            queries = queries or not holds(last_with_last >= lowest)
        return keys, queries

    def _meets_itself(self) -> bool:
        """Whether queries and keys have the same segments and positions, and each query sees its own key."""
        positions, segments = self.positions, self.segments
        if segments is None or segments[0] is not segments[1] or not statically_true(positions.known_origin == 0):
            return False
        if self.key_mask is not None or self.pairs is not None:
            return False
        if not statically_true(positions.query_length == positions.key_length):
            return False
        lowest, highest = positions.lowest, positions.highest
        return (lowest is None or statically_true(lowest <= 0)) and (highest is None or statically_true(highest >= 0))

    def added(self) -> Float[Tensor, "#B #Hq #Lq #Lk"] | None:
        """What a float mask adds to the scores of the pairs that it allows; None without one."""
        if self.pairs is None or self.pairs.dtype == torch.bool:
            return None
        return self.pairs.masked_fill(self.pairs == -torch.inf, 0.0)

    def beyond_limits(self) -> Bool[Tensor, "#B 1 Lq Lk"] | None:
        """Where key position - query position lies below lowest or above highest; None where it never does."""
        if not self.limits_positions():
            return None
        positions = self.positions
        lowest, highest, origin = positions.lowest, positions.highest, positions.known_origin
        if origin is not None:
            return _beyond_diagonals(positions, origin)
        query, key = positions.query_positions().unsqueeze(-1), positions.key_positions().unsqueeze(-2)
        sides = []
        if highest is not None:
            sides.append(key > query + highest)
        if lowest is not None:
            sides.append(key < query + lowest)
        beyond = reduce(torch.logical_or, sides)
        return beyond.unsqueeze(-3) if beyond.dim() == 3 else beyond[None, None]


def _beyond_diagonals(positions: Positions, origin: int) -> Bool[Tensor, "1 1 Lq Lk"]:
    lowest, highest = positions.lowest, positions.highest
    pairs = torch.ones(1, 1, positions.query_length, positions.key_length, dtype=torch.bool, device=positions.device)
    if highest is None:
        assert lowest is not None
        return pairs.tril_(lowest - origin - 1)
    if lowest is None:
        return pairs.triu_(highest - origin + 1)
    return ~pairs.tril_(highest - origin).triu_(lowest - origin)


def part_of_axes(tensor: Shaped[Tensor, "*#n"], *wanted: slice) -> Shaped[Tensor, "*#n"]:
    """The wanted part of every axis; an axis of size 1 holds for every index."""
    return tensor[tuple(slice(None) if size == 1 else part for size, part in zip(tensor.shape, wanted, strict=True))]
