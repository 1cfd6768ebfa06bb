"""Visible ranges: for each query the first key and the end of the keys that it may see under the masks that are data,
and for each key the same of queries.

A pair outside of a range is hidden; inside, a pair may be hidden, too. For segments whose ids never go back along a
side, and for padding at either end, a range begins and ends at visible pairs. Causality, windows and positions are
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


class VisibleRanges(NamedTuple):
    """The first that may be seen, and the one after the last: of keys for each query, of queries for each key. Where
    nothing is visible, the first is not below the end.
    """

    keys: Int32[Tensor, "#B #Hq Lq 2"]
    queries: Int32[Tensor, "#B #Hq Lk 2"]

    @classmethod
    def of(cls, mask: Mask, *, has_bias: bool) -> VisibleRanges:
        """Of a mask that has a key mask, segments or a mask of pairs. Nothing waits for the device.

        Time O(L log L), and memory linear in the lengths, but for one read of a mask of pairs, whose ranges begin and
        end with blocks of SIZE. has_bias: as in `Blocks.of`.
        """
        sides = []
        if mask.key_mask is not None or mask.segments is not None:
            sides.append(_of_ids(mask))
        if mask.pairs is not None:
            sides.append(_of_pairs(mask, has_bias=has_bias))
        return cls(*map(_intersection, zip(*sides, strict=True)))


def _of_ids(mask: Mask) -> tuple[Int32[Tensor, "B 1 Lq 2"], Int32[Tensor, "B 1 Lk 2"]]:
    """By segments and key mask. A key that is left out has no id: it is below all others where the largest are asked
    for, and above them where the smallest are.
    """
    if mask.segments is None:
        assert mask.key_mask is not None
        key_ids = mask.key_mask.new_zeros(mask.key_mask.shape, dtype=torch.int64)
        query_ids = key_ids.new_zeros(len(key_ids), mask.positions.query_length)
    else:
        query_ids, key_ids = (ids.long().contiguous() for ids in mask.segments)
    low = high = key_ids
    if mask.key_mask is not None:
        numbers = torch.iinfo(torch.int64)
        low, high = (key_ids.masked_fill(~mask.key_mask, number) for number in (numbers.min, numbers.max))
    return _of_numbers(low, high, query_ids, query_ids), _of_numbers(query_ids, query_ids, high, low)


def _of_numbers(
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
    return _of_blocks(sees, queries), _of_blocks(sees.mT, keys)


def _of_blocks(sees: Bool[Tensor, "*B m n"], length: int) -> Int32[Tensor, "*B length 2"]:
    """For each row of the m blocks."""
    blocks = torch.arange(sees.shape[-1], dtype=torch.int32, device=sees.device)
    first, end = torch.where(sees, blocks, len(blocks)).amin(-1), torch.where(sees, blocks + 1, 0).amax(-1)
    of_blocks = torch.stack((first, end), dim=-1) * SIZE
    return of_blocks.unsqueeze(-2).expand(*of_blocks.shape[:-1], SIZE, 2).flatten(-3, -2)[..., :length, :]


def _intersection(ranges: tuple[Int32[Tensor, "#B #Hq L 2"], ...]) -> Int32[Tensor, "#B #Hq L 2"]:
    """What lies in all of them."""
    if len(ranges) == 1:
        return ranges[0]
    firsts, ends = zip(*(each.unbind(-1) for each in ranges), strict=True)
    return torch.stack((reduce(torch.maximum, firsts), reduce(torch.minimum, ends)), dim=-1)
