"""What a program adds to sums in memory, beside other programs: by atomic instructions."""

# pyright: reportAssignmentType=false

from __future__ import annotations

import triton
import triton.language as tl

from relattn.backends.triton.device.bands import (
    INTERPRETED,
    NO,
    dot,
    groups_of,
    launch_arch,
    launch_warps,
    padded,
    transposed,
)
from relattn.backends.triton.device.clip_regions import is_clipped


@triton.jit
def first_row(at, row, count, WIDTH: tl.constexpr):
    """Where the rows of one head begin; `row` counts the heads of all batch elements, each with `count` rows."""
    return at + (row.to(tl.int64) * (count + 2) + 1) * WIDTH


@triton.constexpr_function
def _warps_of(groups, tile, width, warps, arch):
    """How the compiler lays a product [tile, width] over the warps, down and along; each of several tiles has one."""
    if groups > 1:
        return 1, 1
    down, along = 1, 1
    if arch == "sm90" and tile >= 64:
        down = warps
    elif tile < width:
        along = warps
    else:
        while down * along < warps:
            down, along = (2 * down, along) if tile * along >= width * down else (down, 2 * along)
    return min(down, tile // 16), min(along, width // 8)


@triton.jit
def add_rows(at, first, count, values, WIDTH: tl.constexpr, TILE: tl.constexpr, MANY_OUTSIDE: tl.constexpr = NO):
    """Add values [TILE, padded width] to the rows from `first`, contiguous ones; each of several tiles begins TILE rows
    before the one before it. What is for rows outside of 0 .. count - 1 goes to the row before, or to the row after;
    with MANY_OUTSIDE nowhere, for programs would wait for each other at these two rows.

    Of a product of tensor cores a thread has columns 2 t and 2 t + 1 of a row, and of the row 8 below it; four threads
    have 8 columns. Neighbouring threads exchange numbers, so that an instruction adds all 8 columns of its rows. Where
    a product lies over the warps as assumed, nothing goes through shared memory; elsewhere the compiler lays it out so
    before.
    """
    GROUPS: tl.constexpr = groups_of(values.shape)
    ARCH: tl.constexpr = "" if INTERPRETED else launch_arch()
    LAID: tl.constexpr = _warps_of(GROUPS, TILE, padded(WIDTH), 4 if INTERPRETED else launch_warps(), ARCH)
    if ARCH == "sm90" and GROUPS == 1:
        _add_quads(at, first, count, values, WIDTH, TILE, LAID[0], LAID[1], MANY_OUTSIDE)
    else:
        _add_scalars(at, first, count, values, WIDTH, TILE, LAID[0], LAID[1], MANY_OUTSIDE)


@triton.jit
def _add_scalars(
    at, first, count, values, WIDTH: tl.constexpr, TILE: tl.constexpr, DOWN: tl.constexpr, ALONG: tl.constexpr,
    MANY_OUTSIDE: tl.constexpr,
):  # fmt: skip
    """One number of each thread an instruction: all 8 columns of four rows. Threads of neighbouring rows exchange a
    number each; then one has even columns of both rows, the other odd ones.
    """
    GROUPS: tl.constexpr = groups_of(values.shape)
    WARPS: tl.constexpr = GROUPS * DOWN * ALONG
    M: tl.constexpr = TILE // (16 * DOWN)
    N: tl.constexpr = padded(WIDTH) // (8 * ALONG)
    # Row 16 (DOWN m + warp down) + 8 h + 2 r + lower, column 8 (ALONG n + warp along) + 2 t + odd.
    parts = tl.reshape(values, (GROUPS, M, DOWN, 2, 4, 2, N, ALONG, 4, 2))
    parts = tl.permute(parts, (1, 3, 6, 0, 2, 7, 4, 5, 8, 9))
    even, odd = tl.split(tl.reshape(parts, (M, 2, N, WARPS, 4, 2, 4, 2)))  # [m, h, n, warp, r, lower, t]
    m = tl.reshape(tl.arange(0, M), (M, 1, 1, 1, 1, 1, 1))
    h = tl.reshape(tl.arange(0, 2), (1, 2, 1, 1, 1, 1, 1))
    n = tl.reshape(tl.arange(0, N), (1, 1, N, 1, 1, 1, 1))
    warp = tl.reshape(tl.arange(0, WARPS), (1, 1, 1, WARPS, 1, 1, 1))
    r = tl.reshape(tl.arange(0, 4), (1, 1, 1, 1, 4, 1, 1))
    lower = tl.reshape(tl.arange(0, 2), (1, 1, 1, 1, 1, 2, 1))
    t = tl.reshape(tl.arange(0, 4), (1, 1, 1, 1, 1, 1, 4))

    other = _of_the_other(tl.where(lower == 1, even, odd), 5)
    of_upper, of_lower = tl.where(lower == 1, other, even), tl.where(lower == 1, odd, other)
    row = first - warp // (DOWN * ALONG) * TILE + warp // ALONG % DOWN * 16 + 2 * r + (16 * DOWN * m + 8 * h)
    column = warp % ALONG * 8 + 2 * t + lower  # a thread of a lower row has the odd columns now
    _add(at, row, count, column, n * (8 * ALONG), of_upper, WIDTH, MANY_OUTSIDE)
    _add(at, row + 1, count, column, n * (8 * ALONG), of_lower, WIDTH, MANY_OUTSIDE)


@triton.jit
def _add_quads(
    at, first, count, values, WIDTH: tl.constexpr, TILE: tl.constexpr, DOWN: tl.constexpr, ALONG: tl.constexpr,
    MANY_OUTSIDE: tl.constexpr,
):  # fmt: skip
    """Of one tile, four numbers of each thread an instruction: all 8 columns of 16 rows. Threads of neighbouring
    columns exchange two numbers; then one has four columns of the upper row, the other of the lower. Later GPUs than
    Hopper have such instructions, too; nobody has measured them there.
    """
    WARPS: tl.constexpr = DOWN * ALONG
    M: tl.constexpr = TILE // (16 * DOWN)
    N: tl.constexpr = padded(WIDTH) // (8 * ALONG)
    # Row 16 (DOWN m + warp down) + 8 h + r, column 8 (ALONG n + warp along) + 4 half + 2 right + odd.
    parts = tl.reshape(values, (M, DOWN, 2, 8, N, ALONG, 2, 2, 2))
    parts = tl.permute(parts, (0, 4, 1, 5, 3, 6, 7, 8, 2))
    upper, lower = tl.split(tl.reshape(parts, (M, N, WARPS, 8, 2, 2, 2, 2)))  # [m, n, warp, r, half, right, odd]
    m = tl.reshape(tl.arange(0, M), (M, 1, 1, 1, 1, 1, 1))
    n = tl.reshape(tl.arange(0, N), (1, N, 1, 1, 1, 1, 1))
    warp = tl.reshape(tl.arange(0, WARPS), (1, 1, WARPS, 1, 1, 1, 1))
    r = tl.reshape(tl.arange(0, 8), (1, 1, 1, 8, 1, 1, 1))
    half = tl.reshape(tl.arange(0, 2), (1, 1, 1, 1, 2, 1, 1))
    right = tl.reshape(tl.arange(0, 2), (1, 1, 1, 1, 1, 2, 1))

    own, other = tl.where(right == 1, lower, upper), _of_the_other(tl.where(right == 1, upper, lower), 5)
    fours = tl.join(tl.where(right == 1, other, own), tl.where(right == 1, own, other))
    fours = tl.reshape(tl.permute(fours, (0, 1, 2, 3, 4, 5, 7, 6)), (M, N, WARPS, 8, 2, 2, 4))
    row = first + warp // ALONG * 16 + 8 * right + r + 16 * DOWN * m
    column = warp % ALONG * 8 + 4 * half + tl.arange(0, 4)[None, None, None, None, None, None, :]
    _add(at, row, count, column, n * (8 * ALONG), fours, WIDTH, MANY_OUTSIDE)


@triton.jit
def _of_the_other(values, AXIS: tl.constexpr):
    """What the other of two neighbours along an axis gives."""
    bits = values.to(tl.int32, bitcast=True)
    return (tl.xor_sum(bits, AXIS, keep_dims=True) ^ bits).to(tl.float32, bitcast=True)


@triton.jit
def _add(at, row, count, column, more, numbers, WIDTH: tl.constexpr, MANY_OUTSIDE: tl.constexpr):
    """Add the numbers of these rows, at column + more; more: what differs among the numbers of a thread."""
    place = at + (tl.minimum(tl.maximum(row, -1), count).to(tl.int64) * WIDTH + column)
    if MANY_OUTSIDE:
        inside = (row >= 0) & (row < count) & (column < WIDTH - more)
        tl.atomic_add(place + more, numbers, mask=inside, sem="relaxed")
    elif padded(WIDTH) > WIDTH:
        tl.atomic_add(place + more, numbers, mask=column < WIDTH - more, sem="relaxed")
    else:
        tl.atomic_add(place + more, numbers, sem="relaxed")


@triton.jit
def add_band(sums, table, head, offset, left, right, WIDTH: tl.constexpr, TILE: tl.constexpr):
    """Add left^T @ right to the rows of the offsets from `offset`, where the table has them."""
    at = first_row(sums, head, table.rows, WIDTH)
    products = dot(transposed(left), right)
    add_rows(at, offset - table.first, table.rows, products, WIDTH, TILE, is_clipped(table))


@triton.jit
def add_bias(sums, table, head, offset, values, TILE: tl.constexpr):
    """Add the sums of the columns of values [i, c] to the bias at the offsets from `offset`."""
    row = tl.arange(0, TILE) + offset - table.first
    if len(values.shape) == 3:
        row = row[None, :] - tl.arange(0, values.shape[0])[:, None] * TILE
    at = sums + head.to(tl.int64) * table.rows + row
    tl.atomic_add(at, tl.sum(values, axis=-2), mask=(row >= 0) & (row < table.rows), sem="relaxed")


@triton.jit
def add_sides(at, beyond, row, num_rows, first, count, TILE: tl.constexpr):
    """As `store_sides`, added."""
    before, after = beyond
    place = first + tl.arange(0, TILE)
    start = at + row.to(tl.int64) * count
    tl.atomic_add(start + place, before, mask=place < count, sem="relaxed")
    tl.atomic_add(start + num_rows.to(tl.int64) * count + place, after, mask=place < count, sem="relaxed")
