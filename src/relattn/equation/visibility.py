"""Padding: keys that no query sees, and queries that see no key. Their content must not matter.

A weight of 0 does not stop a NaN or an infinity, because 0 * NaN is NaN, in the output and in every gradient. A row of
zeros does. So a backend computes with zeros in place of these rows, or leaves them out.
"""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int64
from torch import Tensor

from relattn.equation.mask import Mask
from relattn.equation.problem import Problem
from relattn.equation.visible_ranges import ranges_of_numbers
from relattn.interception import is_intercepted
from relattn.positions.certainty import statically_true
from relattn.positions.positions import Positions, reach_of_neighbours, reach_of_positions

PAIRS = 2**22
"""The pairs of a mask of pairs that are read at a time."""
FEW = 256
"""Up to this many queries, reading every pair of a mask costs less than sorting the keys.

Times in ms for 2048 keys under a causal window, 1 core, pairs / sorting: 256 queries, 4 rows of keys, 1.2 / 1.9; 64
rows, 8.7 / 25.
"""

Seen = tuple[Bool[Tensor, "#B #Hq #Lk"], Bool[Tensor, "#B #Hq #Lq"]]


class Visibility(NamedTuple):
    """keys [#B, #Hk, #Lk]: True where some query sees the key; queries [#B, #Hq, #Lq]: True where it sees some key.

    None where all of them are True.
    """

    keys: Bool[Tensor, "#B #Hk #Lk"] | None = None
    queries: Bool[Tensor, "#B #Hq #Lq"] | None = None

    @classmethod
    def of_pairs(cls, mask: Mask, hidden: Bool[Tensor, "#B #Hq #Lq #Lk"] | None, key_heads: int) -> Visibility:
        """Read from the pairs that `mask` hides, for a backend that writes the pairs out anyway."""
        if statically_true(mask.positions.query_length == 0) or statically_true(mask.positions.key_length == 0):
            nothing = torch.zeros(1, 1, 1, dtype=torch.bool, device=mask.positions.device)
            return cls(nothing, nothing)
        if hidden is None:
            return cls()
        of_keys, of_queries = mask.may_leave_out()
        keys = _by_key_head(~hidden.all(dim=-2), key_heads) if of_keys else None
        return cls(keys, ~hidden.all(dim=-1) if of_queries else None)

    @classmethod
    def of(cls, mask: Mask, batch: int, key_heads: int) -> Visibility:
        """The same in memory linear in the lengths, apart from a mask of pairs. No start is a tensor."""
        positions = mask.positions
        if positions.query_length == 0 or positions.key_length == 0:
            return cls()
        if not any(mask.may_leave_out()):
            return cls()
        by_blocks = mask.pairs is not None and (mask.pairs.shape[2] != 1 or positions.query_length <= FEW)
        keys, queries = _by_blocks(mask, batch) if by_blocks else _by_sorting(mask)
        return cls(_by_key_head(keys, key_heads), queries)

    def cleaned(self, problem: Problem) -> Problem:
        """The problem with zeros for keys and values that no query sees, and for queries that see no key."""
        if self.keys is None and self.queries is None:
            return problem
        rows = ((axis, axis.relative_query) for axis in problem.axes)
        axes = [axis if r is None else axis.replace(relative_query=with_zeros(r, self.queries)) for axis, r in rows]
        key, value = (with_zeros(tensor, self.keys) for tensor in (problem.key, problem.value))
        return problem.replace(query=with_zeros(problem.query, self.queries), key=key, value=value, axes=tuple(axes))


def with_zeros(rows: Float[Tensor, "B H L D"], seen: Bool[Tensor, "#B #H #L"] | None) -> Float[Tensor, "B H L D"]:
    """The rows, with zeros where `seen` is False; the gradient is zero there too."""
    return rows if seen is None else rows.masked_fill(~seen.unsqueeze(-1), 0.0)


def keys_in_reach(positions: Positions, *, of_all: bool = False) -> tuple[int, int]:
    """The first key that causality and window leave to any query, or to all queries, and the key after the last one.

    All keys (of_all: none) where a start is not an int. Also in a compiled graph, which would else depend on the
    lengths.
    """
    origin, first, end, last = positions.known_origin, 0, positions.key_length, positions.query_length - 1
    if origin is None or torch.compiler.is_compiling():
        return first, 0 if of_all else end
    if positions.lowest is not None:
        first = max(positions.lowest - origin + (last if of_all else 0), 0)
    if positions.highest is not None:
        end = min(positions.highest - origin + 1 + (0 if of_all else last), end)
    return (first, end) if first < end else (0, 0)


def within_segments(mask: Mask) -> Positions | None:
    """The positions, limited to the offsets of pairs of one segment. Reading the ids waits for their device.

    Where ids go back along a side the limits may be wider, see `visible_ranges`.

    None where this limits them no further, where no pair is left, where positions are not contiguous from starts given
    as ints, and where something watches the ids, as a graph does.
    """
    positions = mask.positions
    if mask.segments is None or positions.known_origin is None:
        return None
    if is_intercepted(mask.segments) or any(ids.numel() == 0 for ids in mask.segments):
        return None
    queries, keys = (ids.long().contiguous() for ids in mask.segments)
    first, end = ranges_of_numbers(keys, keys, queries, queries).unbind(-1)
    seeing, query = first < end, torch.arange(positions.query_length, device=first.device)
    if not seeing.any():
        return None
    lowest = positions.known_origin + int((first - query)[seeing].min())
    highest = positions.known_origin + int((end - 1 - query)[seeing].max())
    lowest = lowest if positions.lowest is None else max(lowest, positions.lowest)
    highest = highest if positions.highest is None else min(highest, positions.highest)
    closer = replace(positions, lowest=lowest, highest=highest)
    return None if closer == positions else closer


def within_reach(problem: Problem) -> Problem:
    """The problem with only the keys in reach. They are views, so that a window over a long cache copies nothing."""
    positions, mask = problem.axes[0].positions, problem.mask
    first, end = keys_in_reach(positions)
    if (first, end) == (0, positions.key_length):
        return problem
    queries, keys, part = slice(0, positions.query_length), slice(first, end), problem.dropout_origin()
    return problem.replace(
        key=problem.key[:, :, keys],
        value=problem.value[:, :, keys],
        axes=tuple(axis.replace(positions=axis.positions.part(queries, keys)) for axis in problem.axes),
        mask=mask.part(queries, keys),
        key_bias=None if problem.key_bias is None else problem.key_bias[..., keys],
        part=part._replace(key=part.key + first),
    )


def _by_key_head(seen: Bool[Tensor, "#B #Hq #Lk"], key_heads: int) -> Bool[Tensor, "#B #Hk #Lk"]:
    """A key of a key head is seen if any query head that shares this key head sees it."""
    return seen if seen.shape[1] == 1 or seen.shape[1] == key_heads else seen.unflatten(1, (key_heads, -1)).any(dim=2)


def _by_blocks(mask: Mask, batch: int) -> Seen:
    """Reads every pair, PAIRS at a time, because a mask of pairs has no order to search in.

    It reads them as bytes: on a CPU PyTorch finds the largest byte 30 times as fast as `any` and `all` reduce booleans.
    """
    assert mask.pairs is not None
    num_queries, num_keys = mask.positions.query_length, mask.positions.key_length
    height = max(PAIRS // max(batch * mask.pairs.shape[1] * num_keys, 1), 1)
    keys, queries = torch.zeros(1, 1, 1, dtype=torch.uint8, device=mask.positions.device), []
    for first in range(0, num_queries, height):
        rows = slice(first, min(first + height, num_queries))
        part = mask.part(rows, slice(0, num_keys))
        seen, beyond = part.kept(), part.beyond_limits()
        assert seen is not None
        seen = (seen if beyond is None else seen & ~beyond).view(torch.uint8)
        keys = torch.maximum(keys, seen.amax(dim=-2))
        queries.append(seen.amax(dim=-1).expand(-1, -1, rows.stop - rows.start))
    return keys.bool(), torch.cat(queries, dim=-1).bool()


def _by_sorting(mask: Mask) -> Seen:
    """Which keys some query sees, and which queries see some key, without looking at pairs: O(L log L) time.

    A mask of pairs has one row for all queries: it hides keys, as the key mask does.
    """
    lowest, highest = mask.positions.lowest, mask.positions.highest
    row = Mask(mask.positions, mask.key_mask, None, mask.pairs).kept()
    kept = torch.ones(1, 1, mask.positions.key_length, dtype=torch.bool, device=mask.positions.device)
    if row is not None:
        kept = row.squeeze(2)
    if mask.segments is None and lowest is None and highest is None:
        return kept, kept.any(dim=-1, keepdim=True)
    if mask.segments is None and mask.positions.known_origin is not None:
        return _by_counting(mask.positions, kept)
    query, key = mask.positions.query_positions().unsqueeze(-2), mask.positions.key_positions().unsqueeze(-2)
    query_ids, key_ids = torch.zeros_like(query), torch.zeros_like(key)
    if mask.segments is not None:
        query_ids, key_ids = (ids.unsqueeze(-2).long() for ids in mask.segments)
    batch = torch.broadcast_shapes((1, 1), *(t.shape[:-1] for t in (query, key, query_ids, key_ids, kept)))
    query, query_ids = (t.expand(*batch, mask.positions.query_length).contiguous() for t in (query, query_ids))
    key, key_ids, kept = (t.expand(*batch, mask.positions.key_length).contiguous() for t in (key, key_ids, kept))
    everyone = torch.ones_like(query, dtype=torch.bool)
    before, after = (None if limit is None else -limit for limit in (highest, lowest))
    keys = kept & _meets(key, key_ids, query, query_ids, everyone, before, after)
    return keys, _meets(query, query_ids, key, key_ids, kept, lowest, highest)


def _by_counting(positions: Positions, kept: Bool[Tensor, "#B #Hq #Lk"]) -> Seen:
    """The same on contiguous positions, where a query reaches the keys of one range, and a key the queries of one."""
    lowest, highest, origin = positions.lowest, positions.highest, positions.known_origin
    assert origin is not None
    lowest, highest = (None if limit is None else limit - origin for limit in (lowest, highest))
    back, ahead = (None if limit is None else -limit for limit in (highest, lowest))
    first, end = reach_of_neighbours(positions.key_length, positions.query_length, back, ahead, kept.device)
    keys = kept & (first < end)
    first, end = reach_of_neighbours(positions.query_length, positions.key_length, lowest, highest, kept.device)
    kept = kept.expand(-1, -1, positions.key_length)
    before = F.pad(kept.cumsum(-1), (1, 0))  # how many are kept before each key
    return keys, before[..., end] > before[..., first]


def _meets(
    positions: Int64[Tensor, "*B n"],
    ids: Int64[Tensor, "*B n"],
    others: Int64[Tensor, "*B m"],
    other_ids: Int64[Tensor, "*B m"],
    kept: Bool[Tensor, "*B m"],
    first: int | None,
    last: int | None,
) -> Bool[Tensor, "*B n"]:
    """For each element, whether a kept one of the others has the same id and stands at an offset of first .. last.

    The others are sorted by id, and within an id by position. So the candidates are neighbours, and two searches count
    them.
    """
    count = others.shape[-1]
    in_order, order = others.sort(dim=-1)
    rank = order.argsort(dim=-1)
    start, end = reach_of_positions(positions, in_order, first, last)
    known_ids = other_ids.sort(dim=-1).values
    line = torch.searchsorted(known_ids, other_ids) * (count + 1) + rank
    line = line.masked_fill(~kept, (count + 1) ** 2).sort(dim=-1).values  # the dropped ones go to the end
    group = torch.searchsorted(known_ids, ids)
    known = known_ids.gather(-1, group.clamp(max=count - 1)) == ids
    group = group * (count + 1)
    return known & (torch.searchsorted(line, group + start) < torch.searchsorted(line, group + end))
