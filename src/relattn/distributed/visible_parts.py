"""Visible parts: which of a rank's queries may see which keys of which round, and so what the ranks need of others.

The limits of the offset decide, and the smallest and the largest segment id of the queries and of the keys that
key_mask keeps: where these ranges are disjoint, no pair attends. A part that counts as visible may hide all its pairs.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from jaxtyping import Bool, Int64
from torch import Tensor

from relattn.distributed.lowering import Call, Gathered
from relattn.distributed.needs import ALL, Needs
from relattn.distributed.parts import piece_numbers
from relattn.distributed.ring_schedule import size_of_keys, size_of_queries

Visible = Bool[Tensor, "pieces shares all_pieces rounds"]
"""Of a share of one of this rank's pieces, and of what a piece of the sequence's keys gives in a round."""


def visible_parts(call: Call, keys: Gathered) -> Visible:
    """Whether some pair of each part may attend."""
    own = [piece.start for piece in call.own(call.query.shape[2])]
    length = call.key.shape[2] // len(own)
    others = [number * length for number in range(len(own) * call.group.world)]
    sizes = size_of_queries(call.query.shape[2]), size_of_keys(call.key.shape[2], len(own))
    first_query, last_query = (end[..., None, None] for end in _ends(own, call.query.shape[2] // len(own), sizes[0]))
    first_key, last_key = _ends(others, length, sizes[1])
    lowest, highest = call.limits_of_elements()
    visible = torch.ones(*first_query.shape[:2], *first_key.shape, dtype=torch.bool)
    if lowest is not None:
        visible &= last_key - first_query >= lowest
    if highest is not None:
        visible &= first_key - last_query <= highest
    if call.hides_by_data() and visible.numel():
        visible &= _ids_overlap(call, keys, (len(own), len(others)), sizes).cpu()
    return visible


def exchanged_needs(call: Call, visible: Visible) -> Needs:
    """What all ranks need of others."""
    group, seen = call.group, visible.flatten(0, 1).any(0)
    rounds, row = torch.arange(seen.shape[1]), [ALL]
    for distance in range(1, group.world):
        given = seen[list(piece_numbers((group.rank - distance) % group.world, group.world, call.layout))].any(0)
        row.append(int((given.long() << rounds).sum()))
    return Needs(group.all_numbers(row))


def _ends(starts: list[int], length: int, size: int) -> tuple[Int64[Tensor, "pieces blocks"], ...]:
    blocks, of_pieces = torch.arange(0, length, size), torch.tensor(starts).unsqueeze(1)
    return of_pieces + blocks, of_pieces + (blocks + size).clamp(max=length) - 1


def _ids_overlap(call: Call, keys: Gathered, counts: tuple[int, int], sizes: tuple[int, int]) -> Visible:
    """Whether the ranges of ids overlap in any element of the batch. Without segments all ids are 0."""
    queries, of_all = call.query.shape[2], call.key.shape[2] * call.group.world
    zeros = torch.zeros(call.query.shape[0], 1, dtype=torch.int64, device=call.query.device)
    ids = zeros.expand(-1, queries) if call.segments is None else call.segments[0].long()
    lowest = highest = zeros.expand(-1, of_all) if keys.segments is None else keys.segments.long()
    if keys.key_mask is not None:
        hidden, ends = ~keys.key_mask, torch.iinfo(torch.int64)
        lowest, highest = lowest.masked_fill(hidden, ends.max), highest.masked_fill(hidden, ends.min)
    first, last = (_of_blocks(reduce, ids, counts[0], sizes[0])[..., None, None] for reduce in (torch.amin, torch.amax))
    begins_before = first <= _of_blocks(torch.amax, highest, counts[1], sizes[1])[:, None, None]
    ends_after = last >= _of_blocks(torch.amin, lowest, counts[1], sizes[1])[:, None, None]
    return (begins_before & ends_after).any(0)


def _of_blocks(
    reduce: Callable[..., Tensor], ids: Int64[Tensor, "B n"], pieces: int, size: int
) -> Int64[Tensor, "B pieces blocks"]:
    return torch.stack([reduce(block, -1) for block in ids.unflatten(-1, (pieces, -1)).split(size, -1)], -1)
