"""The order of the tiles: groups of heads, tiles of queries, and the chunks of keys that each tile can see."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from jaxtyping import Bool
from torch import Tensor

from relattn.backends.tiled.sizes import TileSizes
from relattn.equation.mask import all_of
from relattn.equation.problem import Problem
from relattn.positions.boxes import units
from relattn.positions.grid import GridPositions
from relattn.positions.position import Position
from relattn.positions.positions import Positions


class Heads(NamedTuple):
    """Neighbouring key heads of one batch element, and the query heads that share them."""

    batch: int
    keys: slice
    queries: slice


def head_groups(problem: Problem, sizes: TileSizes) -> Iterator[Heads]:
    """Every head of every batch element once."""
    num_groups, count = problem.num_groups(), problem.key.shape[1]
    for batch in range(problem.query.shape[0]):
        for first in range(0, count, sizes.key_heads):
            last = min(first + sizes.key_heads, count)
            yield Heads(batch, slice(first, last), slice(first * num_groups, last * num_groups))


def query_tiles(problem: Problem, sizes: TileSizes) -> Iterator[slice]:
    """Every query once."""
    first, length = 0, problem.query.shape[2]
    places = [axis.positions.query for axis in problem.axes[1:]]
    while first < length:
        end = min(first + sizes.queries, length)
        if places and end < length:
            end = _on_border(places, first, end, sizes.queries)
        yield slice(first, end)
        first = end


def key_chunks(problem: Problem, sizes: TileSizes, batch: int, queries: slice) -> Iterator[slice]:
    """The keys that any of `queries` can see, in chunks of about one size, at most that of the tile."""
    first, end = visible_keys(problem, batch, queries)
    if first >= end:
        return
    chunks = -(-(end - first) // sizes.keys)
    width = -(-(end - first) // chunks)
    places = [axis.positions.key for axis in problem.axes[1:]]
    while first < end:
        stop = min(first + width, end)
        if places and stop < end:
            stop = _on_border(places, first, stop, sizes.keys)
        yield slice(first, stop)
        first = stop


def _on_border(places: list[Position], first: int, stop: int, most: int) -> int:
    """The end of a tile from `first`: about at `stop`, between two rows of a grid, or between two larger units in it.

    The tile has at most `most` elements. If it holds no such border it ends at `stop`.
    """
    best = 1, stop
    for place in places:
        if not isinstance(place, GridPositions):
            continue
        behind = place.prefix_tokens - place.first
        for unit in units(place) or ():
            border = (stop - behind) // unit * unit + behind
            if border < stop and border + unit - first <= most:
                border += unit
            if border > first:
                best = max(best, (unit, border))
    return best[1]


def visible_keys(problem: Problem, batch: int, queries: slice) -> tuple[int, int]:
    """The first key that any of `queries` might see, and the key after the last. The rest is never computed.

    Limits on contiguous positions are arithmetic. Explicit positions, segments and the key mask are read, one number
    per key.
    """
    first, end = _within_limits(problem.sequence().positions, queries)
    candidates = _candidates(problem, batch, queries, slice(first, end)) if first < end else None
    if candidates is None:
        return first, end
    found = candidates.nonzero()
    return (first + int(found[0]), first + int(found[-1]) + 1) if len(found) else (0, 0)


def _within_limits(positions: Positions, queries: slice) -> tuple[int, int]:
    origin = positions.known_origin
    if origin is None:
        return 0, positions.key_length
    first = 0 if positions.lowest is None else positions.lowest - origin + queries.start
    end = positions.key_length if positions.highest is None else positions.highest - origin + queries.stop
    return max(first, 0), min(end, positions.key_length)


def _candidates(problem: Problem, batch: int, queries: slice, keys: slice) -> Bool[Tensor, "n"] | None:
    """False for keys that none of the queries can see; None where this is not known for any key."""
    explicit = problem.sequence().positions.known_origin is None
    if not explicit and problem.mask.keeps_all():
        return None
    tile = problem.mask.tile(batch, slice(0, 1), queries, keys)
    conditions = []
    if explicit:
        query, key = tile.positions.query_positions(), tile.positions.key_positions()
        if tile.positions.lowest is not None:
            conditions.append(key >= query.min() + tile.positions.lowest)
        if tile.positions.highest is not None:
            conditions.append(key <= query.max() + tile.positions.highest)
    if tile.segments is not None:
        query_ids, key_ids = (ids[0] for ids in tile.segments)
        conditions.append((key_ids >= query_ids.min()) & (key_ids <= query_ids.max()))
    if tile.key_mask is not None:
        conditions.append(tile.key_mask[0])
    return all_of(conditions)
