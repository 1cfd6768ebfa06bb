"""Sums that several programs add to, in memory, by atomic instructions: dk, dv, and the gradients of tables and key
bias.
"""

# pyright: reportAssignmentType=false

from __future__ import annotations

from collections.abc import Collection
from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from relattn.backends.triton.bands import (
    INTERPRETED,
    NO,
    asked_arch,
    asked_warps,
    dot,
    groups_of,
    padded,
    transposed,
)
from relattn.backends.triton.call import Call
from relattn.backends.triton.stretches import is_clipped
from relattn.score.problem import TABLES

NUMBERS = ("bias", "key_bias")
"""Gradients of numbers; the others are of rows of vectors."""


class Across(NamedTuple):
    """Where a program adds what it knows of a gradient; None where it adds nothing.

    key, value: [B, Hk, 1 + Lk + 1, width]. Of a table: [Hq, 1 + rows + 1, width], or [Hq, rows] for a bias. key_bias:
    [B, Hq, Lk]. All float32 and contiguous. Nothing is read of the spare rows before and after. They take what
    belongs to no row, so that such an addition waits for no condition.
    """

    key: Tensor | None
    value: Tensor | None
    relative_keys: Tensor | None
    relative_queries: Tensor | None
    relative_values: Tensor | None
    bias: Tensor | None
    key_bias: Tensor | None

    @classmethod
    def of(cls, memory: dict[str, Tensor]) -> Across:
        """The memory by name; what is not in it is not added to."""
        return cls(*(memory.get(name) for name in cls._fields))


def memory_for(call: Call, wanted: Collection[str]) -> dict[str, Tensor]:
    """Zeros for dk, dv, the wanted tables and a wanted key bias, in float32."""
    memory = {name: with_spare_rows(name, getattr(call, name)) for name in ("key", "value")}
    for name in TABLES:
        if name in wanted and (table := getattr(call, name)) is not None:
            of_heads = table.values.expand(call.query.shape[1], *table.values.shape[1:])
            memory[name] = with_spare_rows(name, of_heads)
    if "key_bias" in wanted and call.key_bias is not None:
        memory["key_bias"] = with_spare_rows("key_bias", call.key_bias)
    return memory


def with_spare_rows(name: str, like: Tensor) -> Tensor:
    """Zeros in float32: with a row before and a row after for rows of vectors, of the shape itself for numbers."""
    shape = like.shape if name in NUMBERS else (*like.shape[:-2], like.shape[-2] + 2, like.shape[-1])
    return like.new_zeros(shape, dtype=torch.float32)


def without_spare_rows(name: str, memory: Tensor) -> Tensor:
    """What was added to rows that are there."""
    return memory if name in NUMBERS else memory[..., 1:-1, :]


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

    Of a product of tensor cores a thread has columns 2 t and 2 t + 1 of a row, four threads have 8 columns, and one
    instruction adds one number of each thread. So threads of neighbouring rows exchange a number each. Then one
    instruction adds all 8 columns of the upper rows, the other those of the lower rows. Where a product lies over the
    warps as assumed, nothing goes through shared memory; elsewhere the compiler lays it out so before.
    """
    GROUPS: tl.constexpr = groups_of(values.shape)
    IN_PLACE: tl.constexpr = (4, "") if INTERPRETED else (asked_warps(), asked_arch())
    DOWN: tl.constexpr = _warps_of(GROUPS, TILE, padded(WIDTH), IN_PLACE[0], IN_PLACE[1])[0]
    ALONG: tl.constexpr = _warps_of(GROUPS, TILE, padded(WIDTH), IN_PLACE[0], IN_PLACE[1])[1]
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

    given = tl.where(lower == 1, even, odd).to(tl.int32, bitcast=True)
    taken = (tl.xor_sum(given, 5, keep_dims=True) ^ given).to(tl.float32, bitcast=True)
    of_upper, of_lower = tl.where(lower == 1, taken, even), tl.where(lower == 1, odd, taken)
    row = first - warp // (DOWN * ALONG) * TILE + warp // ALONG % DOWN * 16 + 2 * r + (16 * DOWN * m + 8 * h)
    column = warp % ALONG * 8 + 2 * t + lower  # a thread of a lower row has the odd columns now
    _add(at, row, count, column, n * (8 * ALONG), of_upper, WIDTH, MANY_OUTSIDE)
    _add(at, row + 1, count, column, n * (8 * ALONG), of_lower, WIDTH, MANY_OUTSIDE)


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
def add_sides(at, before, after, row, all_rows, first, count, TILE: tl.constexpr):
    """As `store_sides`, added."""
    place = first + tl.arange(0, TILE)
    start = at + row.to(tl.int64) * count
    tl.atomic_add(start + place, before, mask=place < count, sem="relaxed")
    tl.atomic_add(start + all_rows.to(tl.int64) * count + place, after, mask=place < count, sem="relaxed")
