"""The three regions of a walk over tiles: BEFORE the rows of every clipped table, WITHIN them, and AFTER.

Before and after, one row of such a table holds for all pairs of a tile: a product is one number per query or key, and a
bias is one number. Each region is a loop of its own. So no load of rows waits for a condition, and all can be
pipelined. The code for WITHIN is right for every tile; the other two only save work.

The loops run in the order of the numbers below. The loop with most registers comes last: then nothing is held for
another loop beside it.
"""

# pyright: reportGeneralTypeIssues=false

from __future__ import annotations

import triton
import triton.language as tl

from relattn.backends.triton.device.bands import is_tf32x3
from relattn.backends.triton.device.masks import FAR, key_tiles, query_tiles

BEFORE, AFTER, WITHIN = tl.constexpr(0), tl.constexpr(1), tl.constexpr(2)


@triton.jit
def is_clipped(table):
    """Whether there is a table, and a visible offset may lie outside of it."""
    return table is not None and table.beyond is not None


@triton.jit
def any_clipped(x):
    """Whether a walk has more than one region. With products in parts no registers are left for that."""
    return not is_tf32x3() and (
        is_clipped(x.relative_keys)
        or is_clipped(x.relative_queries)
        or is_clipped(x.relative_values)
        or is_clipped(x.bias)
    )


@triton.jit
def holds_too_much(x, D: tl.constexpr, DV: tl.constexpr):
    """Whether what does not change from tile to tile is computed in each tile of a walk of the backward pass. Held for
    three loops it would spill, beside wide rows and a table of vectors.
    """
    has_vectors = x.relative_keys is not None or x.relative_queries is not None or x.relative_values is not None
    return any_clipped(x) and has_vectors and (D > 64 or DV > 64)


@triton.jit
def first_region(x):
    """The number of the first region of a walk; the last is WITHIN."""
    return BEFORE if any_clipped(x) else WITHIN


@triton.jit
def is_constant(table, REGION: tl.constexpr):
    """Whether one row of the table holds for all pairs of the region."""
    return REGION != WITHIN and is_clipped(table)


@triton.jit
def _with_rows(table, first, end):
    if is_clipped(table):
        first, end = tl.minimum(first, table.first), tl.maximum(end, table.first + table.rows)
    return first, end


@triton.jit
def clipped_rows(x):
    """The first offset that is a row of any clipped table, and the offset after the last."""
    first, end = FAR, -FAR
    first, end = _with_rows(x.relative_keys, first, end)
    first, end = _with_rows(x.relative_queries, first, end)
    first, end = _with_rows(x.relative_values, first, end)
    return _with_rows(x.bias, first, end)


@triton.jit
def keys_of(x, batch, head, first_query, REGION: tl.constexpr, QUERIES: tl.constexpr, TILE: tl.constexpr):
    """The first key of the region (a multiple of TILE), for QUERIES queries, and the key after the last."""
    begin, end = key_tiles(x, batch, head, first_query, QUERIES, TILE)
    if any_clipped(x):
        first, last = clipped_rows(x)
        # The first query has the largest offsets, the last one the smallest.
        within = tl.minimum(tl.maximum(first - x.offset + first_query, begin) // TILE * TILE, end)
        after = tl.minimum(last - x.offset, x.keys) + first_query + QUERIES - 1
        after = tl.cdiv(tl.maximum(after, within), TILE) * TILE
        after = tl.minimum(after, end)
        if REGION == BEFORE:
            end = within
        elif REGION == AFTER:
            begin = after
        else:
            begin, end = within, after
    return begin, end


@triton.jit
def queries_of(x, batch, head, first_key, REGION: tl.constexpr, KEYS: tl.constexpr, TILE: tl.constexpr):
    """The first query of the region (a multiple of TILE), for KEYS keys, and the query after the last.

    Offsets fall along the queries: the region AFTER comes first.
    """
    begin, end = query_tiles(x, batch, head, first_key, KEYS, TILE)
    if any_clipped(x):
        first, last = clipped_rows(x)
        # The first key has the smallest offsets, the last one the largest.
        within = tl.minimum(tl.maximum(x.offset + first_key - last + 1, begin) // TILE * TILE, end)
        before = tl.minimum(x.offset - first, x.queries) + first_key + KEYS
        before = tl.cdiv(tl.maximum(before, within), TILE) * TILE
        before = tl.minimum(before, end)
        if REGION == AFTER:
            end = within
        elif REGION == BEFORE:
            begin = before
        else:
            begin, end = within, before
    return begin, end
