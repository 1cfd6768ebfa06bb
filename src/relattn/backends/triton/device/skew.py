"""Between pairs (i, j) and offsets on chip, by one rotation within rows or columns.

A tile of T queries and T keys has 2 T - 1 offsets. Column c of its band is the offset of its last query and first key
plus c, and pair (i, j) lies at c = j - i + T - 1. The band has two halves of T columns. Row i needs the left half in
columns c >= T - 1 - i, and the right half in the others. So one [T, T] tensor holds all that it needs of both:

    joined[i, c] = (left if c >= T - 1 - i else right)[i, c]        pairs[i, j] = joined[i, (j - i - 1) mod T]

Where a program owns several tiles of queries, [GROUPS, T, T], each has a band of its own, and all rotate at once.
"""

# pyright: reportGeneralTypeIssues=false

from __future__ import annotations

import triton
import triton.language as tl

from relattn.backends.triton.device.bands import NO, groups_of


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
def moved(tile, places, TILE: tl.constexpr):
    """The elements of a tile, or of several, at these places: those of each tile after those of the one before.

    `tl.gather` along one of two axes lays the tile out anew, turns it by shuffles, and lays it out as before: three
    times the bytes. Of a tensor with one axis it goes through shared memory once.
    """
    COUNT: tl.constexpr = groups_of(tile.shape) * TILE * TILE
    parts = tl.reshape(tile, (COUNT // (8 * TILE), 8, TILE // 8, 4, 2))
    parts = tl.reshape(tl.permute(parts, (0, 2, 4, 1, 3)), (COUNT,))
    return tl.reshape(tl.gather(parts, tl.reshape(places, (COUNT,)), 0), tile.shape)


@triton.jit
def _digits_of_a_warp(GROUPS: tl.constexpr, TILE: tl.constexpr):
    """The number of a tile, and the digits m, r, n, t, b of a row 8 m + r and a column 8 n + 2 t + b, to be broadcast.

    Each of several tiles lies in one warp. For a product of tensor cores m and n then tell which of a thread's numbers
    is meant; r, t and b tell the thread, and one of two neighbours. By digits a place is a sum of a few numbers that
    differ from thread to thread, and of constants, and most conditions are constant. By rows and columns the compiler
    keeps an address per number in registers.
    """
    number = tl.reshape(tl.arange(0, GROUPS), (GROUPS, 1, 1, 1, 1, 1))
    m = tl.reshape(tl.arange(0, TILE // 8), (1, TILE // 8, 1, 1, 1, 1))
    r = tl.reshape(tl.arange(0, 8), (1, 1, 8, 1, 1, 1))
    n = tl.reshape(tl.arange(0, TILE // 8), (1, 1, 1, TILE // 8, 1, 1))
    t = tl.reshape(tl.arange(0, 4), (1, 1, 1, 1, 4, 1))
    b = tl.reshape(tl.arange(0, 2), (1, 1, 1, 1, 1, 2))
    return number, m, r, n, t, b


@triton.jit
def _digits_of_warps(TILE: tl.constexpr):
    """The same for a tile that several warps share: w, h, r, n, t, b of a row 16 w + 8 h + r; w tells the warp."""
    w = tl.arange(0, TILE // 16)[:, None, None, None, None, None]
    h = tl.arange(0, 2)[None, :, None, None, None, None]
    r = tl.arange(0, 8)[None, None, :, None, None, None]
    n = tl.arange(0, TILE // 8)[None, None, None, :, None, None]
    t = tl.arange(0, 4)[None, None, None, None, :, None]
    b = tl.arange(0, 2)[None, None, None, None, None, :]
    return w, h, r, n, t, b


@triton.jit
def _rows_rotated(tile, SIGN: tl.constexpr, SHIFT: tl.constexpr, TILE: tl.constexpr):
    """tile[i, (j + SIGN i + SHIFT) mod T] as [i, j]; SIGN: 1 or -1; SHIFT: SIGN or 0."""
    GROUPS: tl.constexpr = groups_of(tile.shape)
    if GROUPS > 1:
        number, m, r, n, t, b = _digits_of_a_warp(GROUPS, TILE)
        column = 2 * t + b + SIGN * r + SHIFT + 8 * (SIGN < 0)  # 0 .. 15: in this block of 8, or over its end
        block, over = (n + SIGN * m - (SIGN < 0)) & (TILE // 8 - 1), column >> 3
        within = 32 * (column & 1) + 4 * r + (column >> 1 & 3)
        over_the_last = tl.where(over == 0, 64 * (TILE // 8 - 1), 0)
        first = tl.where(block == TILE // 8 - 1, over_the_last, 64 * over + 64 * block)
        places = first + (within + TILE * TILE * number) + 8 * TILE * m
    else:
        w, h, r, n, t, b = _digits_of_warps(TILE)
        column = 2 * t + b + SIGN * r + SHIFT + 8 * (SIGN < 0)
        within = 32 * (column & 1) + 4 * r + (column >> 1 & 3) + 16 * TILE * w
        block = ((column >> 3) + 2 * SIGN * w + (n + SIGN * h - (SIGN < 0))) & (TILE // 8 - 1)
        places = within + 8 * TILE * h + 64 * block
    return moved(tile, places, TILE)


@triton.jit
def _read_across(left, right, TILE: tl.constexpr):
    """[left, right][i, j - i + T - 1] as [i, j], for a tile that several warps share.

    Nothing is chosen from left or right before, and no column is taken modulo T: a place is a number of the thread, for
    b = 0 and for b = 1, and a constant. So fewer registers are held, and fewer instructions issued; but both halves are
    written to shared memory.
    """
    w, h, r, n, t, b = _digits_of_warps(TILE)
    column = 2 * t + b - r + 7  # 0 .. 14: in this block of 8, or in the next
    of_thread = 64 * (column >> 3) + 32 * (column & 1) + 4 * r + (column >> 1 & 3) + 64 * (TILE // 2 - 2) * w
    places = of_thread + 64 * (n + (TILE // 4 - 1) * h + TILE // 8 - 1)
    parts = tl.reshape(tl.join(left, right), (TILE // 8, 8, TILE // 8, 4, 2, 2))
    parts = tl.reshape(tl.permute(parts, (0, 5, 2, 4, 1, 3)), (2 * TILE * TILE,))
    return tl.reshape(tl.gather(parts, tl.reshape(places, (TILE * TILE,)), 0), left.shape)


@triton.jit
def _has_left(GROUPS: tl.constexpr, TILE: tl.constexpr):
    """c >= T - 1 - i: where row i needs the left half of its band."""
    if GROUPS > 1:
        _, m, r, n, t, b = _digits_of_a_warp(1, TILE)
        left = tl.reshape(m + n + (r + 2 * t + b + 1 >> 3) >= TILE // 8, (TILE, TILE))
    else:
        left = tl.arange(0, TILE)[None, :] >= TILE - 1 - tl.arange(0, TILE)[:, None]
    return left


@triton.jit
def pairs_from_rows(left, right, TILE: tl.constexpr, ACROSS: tl.constexpr = NO):
    """The halves [i, c] of the queries' products by offset, as pairs [i, j]. ACROSS: where registers are short."""
    GROUPS: tl.constexpr = groups_of(left.shape)
    if ACROSS and GROUPS == 1:
        pairs = _read_across(left, right, TILE)
    else:
        pairs = _rows_rotated(tl.where(_has_left(GROUPS, TILE), left, right), -1, -1, TILE)
    return pairs


@triton.jit
def joined_from_pairs(pairs, TILE: tl.constexpr):
    """Pairs [i, j] as both halves joined, [i, c]: the inverse of the rotation above."""
    return _rows_rotated(pairs, 1, 1, TILE)


@triton.jit
def shared_half(joined, before, TILE: tl.constexpr):
    """The left half [i, c] of a tile's band, which is the right half of the band of the tile of keys before."""
    return tl.where(_has_left(groups_of(joined.shape), TILE), joined, before)


@triton.jit
def pairs_from_columns(left, right, TILE: tl.constexpr):
    """The halves [c, j] of the keys' products by offset, as pairs [i, j]; key j needs the left half in rows c >= j."""
    c, j = tl.arange(0, TILE)[:, None], tl.arange(0, TILE)[None, :]
    joined = tl.where(c >= j, left, right)
    return moved(joined, shared_place((j - c + TILE - 1) & (TILE - 1), j, TILE), TILE)


@triton.jit
def columns_from_pairs(pairs, TILE: tl.constexpr):
    """Pairs [i, j] as the halves [c, j], zero where a key does not have an offset: the transpose of the above."""
    c, j = tl.arange(0, TILE)[:, None], tl.arange(0, TILE)[None, :]
    joined = moved(pairs, shared_place((j - c + TILE - 1) & (TILE - 1), j, TILE), TILE)
    return tl.where(c >= j, joined, 0.0), tl.where(c < j, joined, 0.0)


@triton.jit
def diagonals_from_tiles(near, far, TILE: tl.constexpr):
    """Two neighbouring tiles [i, n] and [i, T + n] as diagonals [i, c]: the element at n = i + c."""
    i, n = tl.arange(0, TILE)[:, None], tl.arange(0, TILE)[None, :]
    return _rows_rotated(tl.where(n >= i, near, far), 1, 0, TILE)


@triton.jit
def tiles_from_diagonals(diagonals, TILE: tl.constexpr):
    """Diagonals [i, c] as two neighbouring tiles, zero elsewhere: the transpose of the above."""
    i, n = tl.arange(0, TILE)[:, None], tl.arange(0, TILE)[None, :]
    joined = _rows_rotated(diagonals, -1, 0, TILE)
    return tl.where(n >= i, joined, 0.0), tl.where(n < i, joined, 0.0)
