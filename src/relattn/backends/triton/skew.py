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
def shared_place(row, column, TILE: tl.constexpr):
    """Where element [row, column] of a tile stands in shared memory, counted in elements.

    A product of tensor cores lies in a warp's threads as 8 rows by 4 pairs of columns: one element of each of these is
    moved at a time. They stand side by side here: in float32 in 32 banks. After a rotation, what a warp reads at a time
    lies in 32 banks too. In half precision two neighbours share a bank.
    """
    block = row // 8 * (TILE // 8) + column // 8
    return (block * 2 + column % 2) * 32 + row % 8 * 4 + column // 2 % 4


@triton.jit
def moved(tile, row, column, TILE: tl.constexpr):
    """tile[row, column] for each pair of them, [T, T].

    `tl.gather` along one of two axes lays the tile out anew, turns it by shuffles, and lays it out as before: three
    times the bytes. Of a tensor with one axis it goes through shared memory once.
    """
    parts = tl.permute(tl.reshape(tile, (TILE // 8, 8, TILE // 8, 4, 2)), (0, 2, 4, 1, 3))
    places = tl.reshape(shared_place(row, column, TILE), (TILE * TILE,))
    return tl.reshape(tl.gather(tl.reshape(parts, (TILE * TILE,)), places, 0), (TILE, TILE))


@triton.jit
def pairs_from_rows(left, right, TILE: tl.constexpr):
    """The halves [i, c] of the queries' products by offset, as pairs [i, j]."""
    i, c = tl.arange(0, TILE)[:, None], tl.arange(0, TILE)[None, :]
    joined = tl.where(c >= TILE - 1 - i, left, right)
    return moved(joined, i, (c - i + TILE - 1) & (TILE - 1), TILE)


@triton.jit
def joined_from_pairs(pairs, TILE: tl.constexpr):
    """Pairs [i, j] as both halves joined, [i, c]: the inverse of the rotation above."""
    i, c = tl.arange(0, TILE)[:, None], tl.arange(0, TILE)[None, :]
    return moved(pairs, i, (c + i + 1) & (TILE - 1), TILE)


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
    return moved(joined, (j - c + TILE - 1) & (TILE - 1), j, TILE)


@triton.jit
def columns_from_pairs(pairs, TILE: tl.constexpr):
    """Pairs [i, j] as the halves [c, j], zero where a key does not have an offset: the transpose of the above."""
    c, j = tl.arange(0, TILE)[:, None], tl.arange(0, TILE)[None, :]
    joined = moved(pairs, (j - c + TILE - 1) & (TILE - 1), j, TILE)
    return tl.where(c >= j, joined, 0.0), tl.where(c < j, joined, 0.0)


@triton.jit
def diagonals_from_tiles(near, far, TILE: tl.constexpr):
    """Two neighbouring tiles [i, n] and [i, T + n] as diagonals [i, c]: the element at n = i + c."""
    i, n = tl.arange(0, TILE)[:, None], tl.arange(0, TILE)[None, :]
    joined = tl.where(n >= i, near, far)
    return moved(joined, i, (i + n) & (TILE - 1), TILE)


@triton.jit
def tiles_from_diagonals(diagonals, TILE: tl.constexpr):
    """Diagonals [i, c] as two neighbouring tiles, zero elsewhere: the transpose of the above."""
    i, n = tl.arange(0, TILE)[:, None], tl.arange(0, TILE)[None, :]
    joined = moved(diagonals, i, (n - i + TILE) & (TILE - 1), TILE)
    return tl.where(n >= i, joined, 0.0), tl.where(n < i, joined, 0.0)
