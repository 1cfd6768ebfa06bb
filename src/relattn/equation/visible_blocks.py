"""Visible blocks: what blocks of keys, or of queries and keys, have to see under the masks that are data.

Backends leave out what sees nothing, and look at single pairs only where a block says so. Causality, windows and
positions are arithmetic and stand elsewhere.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from jaxtyping import Bool, Float, Int64, UInt8
from torch import Tensor

from relattn.equation.mask import Mask

SIZE = 64
"""Queries and keys of a block. A last block may have fewer."""

NOTHING, LOOK, EVERYTHING = range(3)
"""No pair of a block may attend; some may; all may, and nothing is added to their scores."""


class VisibleBlocks(NamedTuple):
    """What each mask says of every block; None where that mask is absent. A pair attends where all of them agree.

    keys: NOTHING, LOOK or EVERYTHING of a block of keys under the key mask.
    key_ids: the smallest and the largest segment id of a block of keys.
    pairs: NOTHING, LOOK or EVERYTHING of a block of queries and a block of keys under the mask of pairs.
    """

    keys: UInt8[Tensor, "B blocks"] | None = None
    key_ids: Int64[Tensor, "B blocks 2"] | None = None
    pairs: UInt8[Tensor, "#B #Hq #rows blocks"] | None = None

    @classmethod
    def of(cls, mask: Mask, *, has_bias: bool) -> VisibleBlocks:
        """Time and memory linear in the lengths, but for one read of a mask of pairs, of which 1 / SIZE^2 is kept.

        has_bias: whether a bias or a key bias is added to scores, which may hide pairs, too. No axis of the mask is
        empty.
        """
        keys = key_ids = pairs = None
        if mask.key_mask is not None:
            kept = mask.key_mask.contiguous().view(torch.uint8)
            keys = _smallest(kept, -1) + _largest(kept, -1)
        if mask.segments is not None:
            ids = mask.segments[1].long()
            key_ids = torch.stack((_smallest(ids, -1), _largest(ids, -1)), dim=-1)
        if mask.pairs is not None:
            pairs = blocks_of_pairs(mask.pairs, mask, has_bias=has_bias)
        return cls(keys, key_ids, pairs)


def blocks_of_pairs(
    pairs: Bool[Tensor, "#B #Hq #Lq #Lk"] | Float[Tensor, "#B #Hq #Lq #Lk"], mask: Mask, *, has_bias: bool
) -> UInt8[Tensor, "#B #Hq m n"]:
    """A float mask forbids where it is -inf; elsewhere it is looked at, for it adds to the scores.

    Its lowest number hides a pair, too, beside a pair of the row that has a higher one: the weight is 0. That holds
    where nothing else in `mask`, and no bias, may hide that one. A row of only lowest numbers is uniform. float16
    reaches its lowest number, -65504, by scores, so there it hides nothing.
    """
    alone = mask.key_mask is mask.segments is None and not (has_bias or mask.limits_positions())
    once = pairs[tuple(slice(0, 1) if step == 0 else slice(None) for step in pairs.stride())]
    if once.dtype != torch.bool:
        of_rows = _largest(once, -1)
        largest = _largest(of_rows, -2)
        seen = largest != -torch.inf
        if alone and once.dtype != torch.float16:
            lowest = torch.finfo(once.dtype).min
            has_higher = (of_rows.amax(-1, keepdim=True) > lowest).view(torch.uint8)
            seen &= (largest > lowest) | (_smallest(has_higher, -2) == 0)
        return seen.view(torch.uint8)
    attends = once.view(torch.uint8)
    return _smallest(_smallest(attends, -2), -1) + _largest(_largest(attends, -2), -1)


def _smallest(numbers: Tensor, dim: int) -> Tensor:
    """Of each block along an axis."""
    return torch.cat([part.amin(dim) for part in _blocks(numbers, dim)], dim)


def _largest(numbers: Tensor, dim: int) -> Tensor:
    """Of each block along an axis."""
    return torch.cat([part.amax(dim) for part in _blocks(numbers, dim)], dim)


def _blocks(numbers: Tensor, dim: int) -> list[Tensor]:
    """The whole blocks along an axis, and the rest: [..., blocks, SIZE, ...], where the axis SIZE has number `dim`."""
    length = numbers.shape[dim]
    whole = length - length % SIZE
    parts = numbers.split([whole, length - whole], dim)
    return [part.unflatten(dim, (-1, min(SIZE, part.shape[dim]))) for part in parts if part.shape[dim]]
