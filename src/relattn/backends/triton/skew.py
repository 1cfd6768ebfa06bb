"""Between pairs (i, j) and offsets on chip, by one rotation within rows or columns.

A tile of T queries and T keys has 2 T - 1 offsets. Column c of its band is the offset of its last query and first key
plus c, and pair (i, j) lies at c = j - i + T - 1. The band has two halves of T columns. Row i needs the left half in
columns c >= T - 1 - i, and the right half in the others. So one [T, T] tensor holds all that it needs of both:

    joined[i, c] = (left if c >= T - 1 - i else right)[i, c]        pairs[i, j] = joined[i, (j - i - 1) mod T]
"""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def pairs_from_rows(left, right, TILE: tl.constexpr):
    """The halves [i, c] of the queries' products by offset, as pairs [i, j]."""
    i, c = tl.arange(0, TILE)[:, None], tl.arange(0, TILE)[None, :]
    joined = tl.where(c >= TILE - 1 - i, left, right)
    return tl.gather(joined, (c - i + TILE - 1) & (TILE - 1), 1)


@triton.jit
def joined_from_pairs(pairs, TILE: tl.constexpr):
    """Pairs [i, j] as both halves joined, [i, c]: the inverse of the rotation above."""
    i, c = tl.arange(0, TILE)[:, None], tl.arange(0, TILE)[None, :]
    return tl.gather(pairs, (c + i + 1) & (TILE - 1), 1)


@triton.jit
def shared_half(joined, before, TILE: tl.constexpr):
    """The left half [i, c] of a tile's band, which is the right half of the band of the tile of keys before."""
    i, c = tl.arange(0, TILE)[:, None], tl.arange(0, TILE)[None, :]
    return tl.where(c >= TILE - 1 - i, joined, before)


@triton.jit
def pairs_from_columns(left, right, TILE: tl.constexpr):
    """The halves [c, j] of the keys' products by offset, as pairs [i, j]; key j needs the left half in rows c >= j."""
    c, j = tl.arange(0, TILE)[:, None], tl.arange(0, TILE)[None, :]
    joined = tl.where(c >= j, left, right)
    return tl.gather(joined, (j - c + TILE - 1) & (TILE - 1), 0)


@triton.jit
def columns_from_pairs(pairs, TILE: tl.constexpr):
    """Pairs [i, j] as the halves [c, j], zero where a key does not have an offset: the transpose of the above."""
    c, j = tl.arange(0, TILE)[:, None], tl.arange(0, TILE)[None, :]
    joined = tl.gather(pairs, (j - c + TILE - 1) & (TILE - 1), 0)
    return tl.where(c >= j, joined, 0.0), tl.where(c < j, joined, 0.0)


@triton.jit
def diagonals_from_tiles(near, far, TILE: tl.constexpr):
    """Two neighbouring tiles [i, n] and [i, T + n] as diagonals [i, c]: the element at n = i + c."""
    i, n = tl.arange(0, TILE)[:, None], tl.arange(0, TILE)[None, :]
    joined = tl.where(n >= i, near, far)
    return tl.gather(joined, (i + n) & (TILE - 1), 1)


@triton.jit
def tiles_from_diagonals(diagonals, TILE: tl.constexpr):
    """Diagonals [i, c] as two neighbouring tiles, zero elsewhere: the transpose of the above."""
    i, n = tl.arange(0, TILE)[:, None], tl.arange(0, TILE)[None, :]
    joined = tl.gather(diagonals, (n - i + TILE) & (TILE - 1), 1)
    return tl.where(n >= i, joined, 0.0), tl.where(n < i, joined, 0.0)
