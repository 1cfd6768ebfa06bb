"""Sums that several programs add to, in memory, by atomic instructions: dk, dv, and the gradients of tables and key
bias.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from relattn.backends.triton.bands import dot, padded
from relattn.backends.triton.call import Call
from relattn.score.problem import TABLES


class Across(NamedTuple):
    """Where a program adds what it knows of a gradient; None where it adds nothing.

    key, value: [B, Hk, Lk, width]. Of a table: [Hq, rows, width], or [Hq, rows] for a bias. key_bias: [B, Hq, Lk].
    All float32 and contiguous.
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
    shapes = {"key": call.key.shape, "value": call.value.shape}
    for name in TABLES:
        if name in wanted and (table := getattr(call, name)) is not None:
            shapes[name] = torch.Size((call.query.shape[1], *table.values.shape[1:]))
    if "key_bias" in wanted and call.key_bias is not None:
        shapes["key_bias"] = call.key_bias.shape
    return {name: call.query.new_zeros(shape, dtype=torch.float32) for name, shape in shapes.items()}


@triton.jit
def add_rows(at, first, count, values, WIDTH: tl.constexpr, TILE: tl.constexpr):
    """Add values [TILE, padded width] to the rows from `first`, contiguous ones; no row outside of 0 .. count - 1."""
    row = tl.arange(0, TILE)[:, None]
    column = tl.arange(0, padded(WIDTH))[None, :]
    inside = (row >= -first) & (row < count - first) & (column < WIDTH)
    tl.atomic_add(at + tl.cast(first, tl.int64) * WIDTH + (row * WIDTH + column), values, mask=inside, sem="relaxed")


@triton.jit
def add_band(sums, table, head, offset, left, right, WIDTH: tl.constexpr, TILE: tl.constexpr):
    """Add left^T @ right to the rows of the offsets from `offset`, where the table has them."""
    at = sums + head.to(tl.int64) * table.rows * WIDTH
    add_rows(at, offset - table.first, table.rows, dot(tl.trans(left), right), WIDTH, TILE)


@triton.jit
def add_bias(sums, table, head, offset, values, TILE: tl.constexpr):
    """Add the sums of the columns of values [i, c] to the bias at the offsets from `offset`."""
    row = offset + tl.arange(0, TILE) - table.first
    at = sums + head.to(tl.int64) * table.rows + row
    tl.atomic_add(at, tl.sum(values, axis=0), mask=(row >= 0) & (row < table.rows), sem="relaxed")


@triton.jit
def add_sides(at, before, after, row, all_rows, first, count, TILE: tl.constexpr):
    """As `store_sides`, added."""
    place = first + tl.arange(0, TILE)
    start = at + row.to(tl.int64) * count
    tl.atomic_add(start + place, before, mask=place < count, sem="relaxed")
    tl.atomic_add(start + all_rows.to(tl.int64) * count + place, after, mask=place < count, sem="relaxed")
