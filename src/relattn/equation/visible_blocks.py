"""Visible blocks: what blocks of keys, or of queries and keys, have to see under the masks that are data.

Backends leave out what sees nothing, and look at single pairs only where a block says so. Causality, windows and
positions are arithmetic and stand elsewhere.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any, NamedTuple

import torch
from jaxtyping import Bool, Int, Int64, UInt8
from torch import Tensor

from relattn.equation.mask import AttentionMask, Mask, Segments
from relattn.interception import is_intercepted

SIZE = 64
"""Queries and keys of a block. A last block may have fewer."""

PAIRS_TO_READ = 2**15
"""With fewer pairs, over all heads, it takes longer to find the blocks that see nothing than to compute them."""

NOTHING, LOOK, EVERYTHING = range(3)
"""No pair of a block may attend; some may; all may, and nothing is added to their scores."""


class Blocks(NamedTuple):
    """What each mask says of every block; None where that mask is absent. A pair attends where all of them agree.

    keys: NOTHING, LOOK or EVERYTHING of a block of keys under the key mask.
    key_ids: the smallest and the largest segment id of a block of keys.
    pairs: NOTHING, LOOK or EVERYTHING of a block of queries and a block of keys under the mask of pairs.
    """

    keys: UInt8[Tensor, "B blocks"] | None = None
    key_ids: Int64[Tensor, "B blocks 2"] | None = None
    pairs: UInt8[Tensor, "#B #Hq #rows blocks"] | None = None

    @classmethod
    def of(cls, mask: Mask, *, has_bias: bool) -> Blocks:
        """Time and memory linear in the lengths, but for one read of a mask of pairs, of which 1 / SIZE^2 is kept.

        has_bias: whether a bias or a key bias is added to scores, which may hide pairs, too. No axis of the mask is
        empty.
        """
        return cls(
            None if mask.key_mask is None else _of_keys(mask.key_mask),
            None if mask.segments is None else _of_ids(mask.segments[1]),
            None if mask.pairs is None else blocks_of_pairs(mask, has_bias=has_bias),
        )


@dataclass(frozen=True, eq=False)
class VisibleBlocks:
    """What blocks of 64 queries and 64 keys see under some masks, found once for all calls that have these masks.

    A long call with masks finds it for itself, which reads a mask of pairs once more. The layers of a model share it
    where each of them gets the same object. A kernel that skips what sees nothing uses it; answers never depend on it.

    attn_mask, key_mask, segment_ids: as in `relative_attention`. A call is given the same tensors beside it. They are
    read when the first call comes. A later change is refused, but for one through `.data`, which PyTorch does not
    count. Masks that were made in inference mode count no change at all: of them each call finds its own.
    """

    attn_mask: AttentionMask | None = None
    key_mask: Bool[Tensor, "*B Lk"] | None = None
    segment_ids: Segments | None = None

    def __post_init__(self) -> None:
        if isinstance(self.segment_ids, list):  # whose items could be others in the next call
            object.__setattr__(self, "segment_ids", tuple(self.segment_ids))

    def __getstate__(self) -> dict[str, Any]:
        """The masks alone: the changes of a copy are counted anew."""
        return {name: value for name, value in vars(self).items() if name != "_found"}

    def of(
        self, attn_mask: AttentionMask | None, key_mask: Bool[Tensor, "*B Lk"] | None, segment_ids: Segments | None
    ) -> Blocks | None:
        """The blocks of a call's masks, with its axes *B; None where something watches these masks, where no change of
        one would be counted, and where one is empty.

        Raises ValueError: for masks that are not those of the object, or have changed since it was first used.
        """
        given, own = (attn_mask, key_mask, *_sides(segment_ids)), self._masks
        for name, one, other in zip(("attn_mask", "key_mask", *["segment_ids"] * 2), given, own, strict=True):
            if one is not other:
                raise ValueError(
                    f"visible_blocks: got those of another {name} than the call's; expected relattn.VisibleBlocks of "
                    "the same tensors"
                )
        if is_intercepted(own) or any(mask is not None and (mask.is_inference() or not mask.numel()) for mask in own):
            return None
        blocks, versions = self._found
        if versions != _versions(own):
            raise ValueError(
                "visible_blocks: got those of a mask that was changed in place since; expected a new "
                "relattn.VisibleBlocks of it"
            )
        return blocks

    @property
    def _masks(self) -> tuple[Tensor | None, ...]:
        return self.attn_mask, self.key_mask, *_sides(self.segment_ids)

    @cached_property
    def _found(self) -> tuple[Blocks, list[int]]:
        """The blocks, and how often each mask had been changed when they were found."""
        pairs, kept, _, ids = self._masks
        with torch.inference_mode(False):  # else no later call could train with them
            blocks = Blocks(
                None if kept is None else _of_keys(kept),
                None if ids is None else _of_ids(ids),
                None if pairs is None else _of_pairs(pairs[(None,) * (2 - pairs.dim())], alone=False),
            )
        return blocks, _versions(self._masks)


def _sides(segment_ids: Segments | None) -> tuple[Tensor | None, Tensor | None]:
    query_ids, key_ids = segment_ids if isinstance(segment_ids, (tuple, list)) else (segment_ids, segment_ids)
    return query_ids, key_ids


def _versions(masks: tuple[Tensor | None, ...]) -> list[int]:
    return [mask._version for mask in masks if mask is not None]


def _of_keys(key_mask: Bool[Tensor, "*B Lk"]) -> UInt8[Tensor, "*B blocks"]:
    kept = key_mask.contiguous().view(torch.uint8)
    return _smallest(kept, -1) + _largest(kept, -1)


def _of_ids(key_ids: Int[Tensor, "*B Lk"]) -> Int64[Tensor, "*B blocks 2"]:
    ids = key_ids.long()
    return torch.stack((_smallest(ids, -1), _largest(ids, -1)), dim=-1)


def blocks_of_pairs(mask: Mask, *, has_bias: bool) -> UInt8[Tensor, "#B #Hq m n"]:
    """What blocks of queries and keys have to see under the mask of pairs; what the caller found, where he did."""
    assert mask.pairs is not None
    if mask.blocks is not None:
        assert mask.blocks.pairs is not None
        return mask.blocks.pairs
    alone = mask.key_mask is mask.segments is None and not (has_bias or mask.limits_positions())
    return _of_pairs(mask.pairs, alone=alone)


def _of_pairs(pairs: AttentionMask, *, alone: bool) -> UInt8[Tensor, "*#B #Hq m n"]:
    """A float mask forbids where it is -inf; elsewhere it is looked at, for it adds to the scores.

    Its lowest number hides a pair, too, beside a pair of the row that has a higher one: the weight is 0. alone: whether
    nothing else may hide that one. A row of only lowest numbers is uniform. float16 reaches its lowest number, -65504,
    by scores, so there it hides nothing.
    """
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


def _of_blocks(reduce: Callable[[Tensor, int], Tensor], numbers: Tensor, dim: int) -> Tensor:
    """Of each block along an axis: the whole blocks [..., blocks, SIZE, ...], and the rest."""
    length = numbers.shape[dim]
    whole = length - length % SIZE
    parts = [part for part in numbers.split([whole, length - whole], dim) if part.shape[dim]]
    return torch.cat([reduce(part.unflatten(dim, (-1, min(SIZE, part.shape[dim]))), dim) for part in parts], dim)


_smallest, _largest = partial(_of_blocks, torch.amin), partial(_of_blocks, torch.amax)
