"""Visible ranges: for each query the first key and the end of the keys that it may see under what is data: masks, and
limits on explicit positions. For each key the same of queries.

A pair outside of a range is hidden; inside, a pair may be hidden, too. Where ids or positions never go back along a
side, and for padding at either end, a range begins and ends at visible pairs. Limits on contiguous positions are
arithmetic and stand elsewhere.
"""

from __future__ import annotations

from functools import reduce
from typing import NamedTuple

import torch
from jaxtyping import Bool, Int, Int32
from torch import Tensor

from relattn.equation.mask import Mask
from relattn.equation.visible_blocks import NOTHING, SIZE, blocks_of_pairs
from relattn.positions.positions import Positions

LEAST, MOST = torch.iinfo(torch.int64).min, torch.iinfo(torch.int64).max


class VisibleRanges(NamedTuple):
    """The first that may be seen, and the one after the last: of keys for each query, of queries for each key. Where
    nothing is visible, the end is 0.
    """

    keys: Int32[Tensor, "#B #Hq Lq 2"]
    queries: Int32[Tensor, "#B #Hq Lk 2"]

    @classmethod
    def of(cls, mask: Mask, *, has_bias: bool) -> VisibleRanges | None:
        """None where no data hides a pair. Nothing waits for the device. No axis of the mask is empty.

        Time O(L log L), and memory linear in the lengths, but for one read of a mask of pairs, whose ranges begin and
        end with blocks of SIZE. has_bias: as in `Blocks.of`.
        """
        sides = []
        if mask.positions.origin is None and mask.limits_positions():
            sides.append(_of_positions(mask.positions))
        if mask.key_mask is not None or mask.segments is not None:
            sides.append(_of_ids(mask))
        if mask.pairs is not None:
            sides.append(_of_pairs(mask, has_bias=has_bias))
        if not sides:
            return None
        lengths = mask.positions.key_length, mask.positions.query_length
        return cls(*map(_intersection, zip(*sides, strict=True), lengths))


def _of_positions(positions: Positions) -> tuple[Int32[Tensor, "#B 1 Lq 2"], Int32[Tensor, "#B 1 Lk 2"]]:
    """By the limits of key position - query position."""
    queries, keys = positions.query_positions(), positions.key_positions()
    rows = max(len(side) if side.dim() == 2 else 1 for side in (queries, keys))
    queries, keys = (side.expand(rows, -1).contiguous() for side in (queries, keys))
    low, high = (
        torch.full_like(queries, most) if limit is None else queries + limit
        for limit, most in ((positions.lowest, LEAST), (positions.highest, MOST))
    )
    return ranges_of_numbers(keys, keys, low, high), ranges_of_numbers(high, low, keys, keys)


def _of_ids(mask: Mask) -> tuple[Int32[Tensor, "B 1 Lq 2"], Int32[Tensor, "B 1 Lk 2"]]:
    """By segments and key mask. A key that is left out has no id: it changes neither the largest nor the smallest."""
    if mask.segments is None:
        assert mask.key_mask is not None
        key_ids = mask.key_mask.new_zeros(mask.key_mask.shape, dtype=torch.int64)
        query_ids = key_ids.new_zeros(len(key_ids), mask.positions.query_length)
    else:
        query_ids, key_ids = (ids.long().contiguous() for ids in mask.segments)
    low = high = key_ids
    if mask.key_mask is not None:
        low, high = (key_ids.masked_fill(~mask.key_mask, number) for number in (LEAST, MOST))
    return ranges_of_numbers(low, high, query_ids, query_ids), ranges_of_numbers(query_ids, query_ids, high, low)


def ranges_of_numbers(
    low: Int[Tensor, "B n"], high: Int[Tensor, "B n"], least: Int[Tensor, "B m"], most: Int[Tensor, "B m"]
) -> Int32[Tensor, "B 1 m 2"]:
    """Before the first place no number of `low` reaches `least`; from the end on every number of `high` exceeds `most`.

    So both are searched for in numbers that never go back: the largest so far, and the smallest to come.
    """
    largest, smallest = low.cummax(-1).values, high.flip(-1).cummin(-1).values.flip(-1)
    first = torch.searchsorted(largest, least, out_int32=True)
    return torch.stack((first, torch.searchsorted(smallest, most, out_int32=True, right=True)), dim=-1).unsqueeze(1)


def _of_pairs(mask: Mask, *, has_bias: bool) -> tuple[Int32[Tensor, "#B #Hq Lq 2"], Int32[Tensor, "#B #Hq Lk 2"]]:
    """By the mask of pairs, in whole blocks."""
    queries, keys = mask.positions.query_length, mask.positions.key_length
    sees = blocks_of_pairs(mask, has_bias=has_bias) != NOTHING
    sees = sees.expand(*sees.shape[:2], *(-(-length // SIZE) for length in (queries, keys)))
    return _ranges_of_blocks(sees, queries), _ranges_of_blocks(sees.mT, keys)


def _ranges_of_blocks(sees: Bool[Tensor, "*B m n"], length: int) -> Int32[Tensor, "*B length 2"]:
    """For each row of the m blocks."""
    blocks = torch.arange(sees.shape[-1], dtype=torch.int32, device=sees.device)
    first, end = torch.where(sees, blocks, len(blocks)).amin(-1), torch.where(sees, blocks + 1, 0).amax(-1)
    of_blocks = torch.stack((first, end), dim=-1) * SIZE
    return of_blocks.unsqueeze(-2).expand(*of_blocks.shape[:-1], SIZE, 2).flatten(-3, -2)[..., :length, :]


def _intersection(ranges: tuple[Int32[Tensor, "#B #Hq L 2"], ...], length: int) -> Int32[Tensor, "#B #Hq L 2"]:
    """What lies in all of them; an empty range begins after all `length` elements, and ends before them."""
    firsts, ends = zip(*(each.unbind(-1) for each in ranges), strict=True)
    first, end = reduce(torch.maximum, firsts), reduce(torch.minimum, ends)
    empty = first >= end
    return torch.stack((first.masked_fill(empty, length), end.masked_fill(empty, 0)), dim=-1)
