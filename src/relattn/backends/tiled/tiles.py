"""The order of the tiles: groups of heads, tiles of queries, and the chunks of keys that each tile can see."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from relattn.backends.tiled.sizes import TileSizes
from relattn.equation.mask import tile_of
from relattn.equation.problem import Problem
from relattn.equation.visible_ranges import VisibleRanges
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


def key_chunks(
    problem: Problem, sizes: TileSizes, ranges: VisibleRanges | None, heads: Heads, queries: slice
) -> Iterator[slice]:
    """The keys that any of `queries` can see, in chunks of about one size, at most that of the tile."""
    first, end = visible_keys(problem, ranges, heads, queries)
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


def visible_keys(problem: Problem, ranges: VisibleRanges | None, heads: Heads, queries: slice) -> tuple[int, int]:
    """The first key that any of `queries` might see, and the key after the last. The rest is never computed."""
    first, end = _within_limits(problem.sequence().positions, queries)
    if ranges is None:
        return first, end
    firsts, ends = tile_of(ranges.keys, heads.batch, heads.queries, queries, slice(None)).unbind(-1)
    return max(first, int(firsts.min())), min(end, int(ends.max()))


def _within_limits(positions: Positions, queries: slice) -> tuple[int, int]:
    origin = positions.known_origin
    if origin is None:
        return 0, positions.key_length
    first = 0 if positions.lowest is None else positions.lowest - origin + queries.start
    end = positions.key_length if positions.highest is None else positions.highest - origin + queries.stop
    return max(first, 0), min(end, positions.key_length)
