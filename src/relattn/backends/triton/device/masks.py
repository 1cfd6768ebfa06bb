"""Which pairs of a tile attend, which tiles hold pairs that attend, and the factors of dropout."""

# pyright: reportGeneralTypeIssues=false

from __future__ import annotations

import triton
import triton.language as tl

from relattn.backends.triton.device.bands import place
from relattn.backends.triton.device.explicit import offsets_of
from relattn.backends.triton.host.call import FARTHEST

FAR = tl.constexpr(FARTHEST)


@triton.jit
def visible(x, batch, head, i, j):
    """True where query i and key j, which broadcast to a tile, exist and attend."""
    allowed = (i >= 0) & (i < x.queries) & (j >= 0) & (j < x.keys)
    offset = x.offset + j - i
    if x.mask.lowest is not None:
        allowed = allowed & (offset >= x.mask.lowest)
    if x.mask.highest is not None:
        allowed = allowed & (offset <= x.mask.highest)
    if x.mask.explicit_limits is not None:
        offsets = offsets_of(x, x.mask.explicit_limits, batch, i, j)
        if x.mask.explicit_limits.lowest is not None:
            allowed = allowed & (offsets >= x.mask.explicit_limits.lowest)
        if x.mask.explicit_limits.highest is not None:
            allowed = allowed & (offsets <= x.mask.explicit_limits.highest)
    there, batch, head = allowed, batch.to(tl.int64), head.to(tl.int64)
    if x.mask.keep is not None:
        keep = tl.load(x.mask.keep + batch * x.mask.keep_batch + j, mask=(j >= 0) & (j < x.keys), other=0)
        allowed = allowed & (keep != 0)
    if x.mask.query_ids is not None:
        query_at = x.mask.query_ids + batch * x.mask.query_ids_batch + i
        key_at = x.mask.key_ids + batch * x.mask.key_ids_batch + j
        query_ids = tl.load(query_at, mask=(i >= 0) & (i < x.queries), other=0)
        key_ids = tl.load(key_at, mask=(j >= 0) & (j < x.keys), other=0)
        allowed = allowed & (query_ids == key_ids)
    if x.mask.pairs is not None:
        allowed = allowed & (tl.load(pairs_at(x.mask.pairs, batch, head, i, j), mask=there, other=0) != 0)
    return allowed


@triton.jit
def pairs_at(pairs, batch, head, i, j):
    """The addresses of the pairs (i, j), which broadcast to a tile."""
    start = pairs.at + batch.to(tl.int64) * pairs.batch + head.to(tl.int64) * pairs.head
    return start + (i.to(tl.int64) * pairs.query + j.to(tl.int64) * pairs.key)


@triton.jit
def in_reach(x, last_query, first_key, last_key, lowest, highest):
    """Whether every pair of a tile is visible by its offset: all exist, and no limit cuts the offsets from lowest to
    highest.
    """
    every = (last_query < x.queries) & (first_key >= 0) & (last_key < x.keys)
    if x.mask.lowest is not None:
        every = every & (lowest >= x.mask.lowest)
    if x.mask.highest is not None:
        every = every & (highest <= x.mask.highest)
    if x.mask.explicit_limits is not None:
        every = every & False
    return every


@triton.jit
def key_tiles(x, batch, head, first_query, QUERIES: tl.constexpr, TILE: tl.constexpr):
    """The first key (a multiple of TILE) that QUERIES queries may see, and the key after the last: by their offsets,
    and by the ranges of masks that are data.
    """
    first, end = 0, x.keys
    if x.mask.lowest is not None:
        first = tl.maximum(x.mask.lowest - x.offset + first_query, 0) // TILE * TILE
    if x.mask.highest is not None:
        last_query = tl.minimum(first_query + QUERIES, x.queries) - 1
        end = tl.minimum(x.mask.highest - x.offset + last_query + 1, x.keys)
    return _clip_to_ranges(x.mask.visible_keys, batch, head, first_query, x.queries, first, end, QUERIES, TILE)


@triton.jit
def query_tiles(x, batch, head, first_key, KEYS: tl.constexpr, TILE: tl.constexpr):
    """The first query (a multiple of TILE) that may see any of KEYS keys, and the query after them, as above."""
    first, end = 0, x.queries
    if x.mask.highest is not None:
        first = tl.maximum(x.offset + first_key - x.mask.highest, 0) // TILE * TILE
    if x.mask.lowest is not None:
        last_key = tl.minimum(first_key + KEYS, x.keys) - 1
        end = tl.minimum(x.offset + last_key - x.mask.lowest + 1, x.queries)
    return _clip_to_ranges(x.mask.visible_queries, batch, head, first_key, x.keys, first, end, KEYS, TILE)


@triton.jit
def may_meet(x, batch, head, first_query, first_offset, QUERIES: tl.constexpr, OFFSETS: tl.constexpr):
    """Whether any of QUERIES queries may see a key at any of OFFSETS offsets, by the ranges of masks that are data."""
    meets = True
    if x.mask.visible_keys is not None:
        query = first_query + tl.arange(0, QUERIES)
        first, end = _ranges_of(x.mask.visible_keys, batch, head, query, x.queries)
        key = query + first_offset - x.offset
        meets = tl.max(((first < key + OFFSETS) & (key < end)).to(tl.int32), axis=0) > 0
    return meets


@triton.jit
def _clip_to_ranges(ranges, batch, head, row, count, first, end, ROWS: tl.constexpr, TILE: tl.constexpr):
    """first and end, no further out than the ranges of ROWS rows; `count` rows are there."""
    if ranges is not None:
        firsts, ends = _ranges_of(ranges, batch, head, row + tl.arange(0, ROWS), count)
        first = tl.maximum(first, tl.min(firsts, axis=0) // TILE * TILE)
        end = tl.minimum(end, tl.max(ends, axis=0))
    return first, end


@triton.jit
def _ranges_of(ranges, batch, head, rows, count):
    """The first that each row may see, and the one after the last; nothing from row `count` on."""
    at = place(ranges, batch, head) + rows.to(tl.int64) * ranges.row
    return tl.load(at, mask=rows < count, other=FAR), tl.load(at + 1, mask=rows < count, other=0)
