"""Gradients by the tables of listed axes in a fixed order: a program owns neighbouring rows of one table.

It walks over all pairs. Of a tile of pairs without such a row it reads only the positions.
"""

# pyright: reportGeneralTypeIssues=false, reportIndexIssue=false

from __future__ import annotations

import math
from collections.abc import Iterable

import triton
import triton.language as tl
from torch import Tensor

from relattn.backends.triton.again import first_halves, gradients_again, load_queries, weights_again
from relattn.backends.triton.axes import is_summed, memory_after
from relattn.backends.triton.bands import dot, load_rows, padded, place, store_rows, two_to_the
from relattn.backends.triton.blocks import by_row, rows_of_pairs
from relattn.backends.triton.dropout import kept_in_tile
from relattn.backends.triton.listed import vectors_of
from relattn.backends.triton.masks import key_tiles
from relattn.backends.triton.starts import started
from relattn.backends.triton.stretches import WITHIN


def programs_of_rows(rows: Iterable[Tensor], tile: int) -> int:
    """The number of programs that sum them; rows: [Hq, R, ...] of each table."""
    return sum(each.shape[0] * math.ceil(each.shape[1] / tile) for each in rows)


@triton.jit
def rows_kernel(
    x, known, into, batches,
    D: tl.constexpr, DV: tl.constexpr, DR: tl.constexpr, AXIS: tl.constexpr, TILE: tl.constexpr,
):  # fmt: skip
    """`sum_rows` of one program."""
    sum_rows(started(x), known, into, batches, tl.program_id(0), D, DV, DR, AXIS, TILE)


@triton.jit
def sum_rows(
    x, known, into, batches, program,
    D: tl.constexpr, DV: tl.constexpr, DR: tl.constexpr, AXIS: tl.constexpr, TILE: tl.constexpr,
):  # fmt: skip
    """The sums of one block of one table's rows under one head, if the program is one of these; and its number among
    the programs after them. AXIS: the place of the axis in the call; into: the memory of its tables, as in `OfAxes`,
    without spare rows.
    """
    axis = x.axes[AXIS]
    program, into = _block_of(
        x, known, axis, axis.relative_keys, into, 0, two_to_the(axis.log_width), program, batches, D, DV, DR, TILE
    )  # fmt: skip
    program, into = _block_of(
        x, known, axis, axis.relative_queries, into, 1, padded(D), program, batches, D, DV, DR, TILE
    )  # fmt: skip
    program, into = _block_of(
        x, known, axis, axis.relative_values, into, 2, padded(DV), program, batches, D, DV, DR, TILE
    )  # fmt: skip
    program, into = _block_of(x, known, axis, axis.bias, into, 3, 1, program, batches, D, DV, DR, TILE)
    return program


@triton.jit
def _block_of(
    x, known, axis, table, into, NUMBER: tl.constexpr, WIDTH: tl.constexpr, program, batches,
    D: tl.constexpr, DV: tl.constexpr, DR: tl.constexpr, TILE: tl.constexpr,
):  # fmt: skip
    """The sums of one block of this table's rows, if the program is one of its own. The program's number among those of
    the tables after it, and where the memory of these begins. NUMBER: the table's in TABLES.
    """
    if is_summed(axis.summed, NUMBER):
        blocks = tl.cdiv(table.rows, TILE)
        if (program >= 0) & (program < blocks * x.heads):
            _sum_block(
                x, known, axis, table, into, NUMBER, WIDTH, program % blocks * TILE, program // blocks, batches,
                D, DV, DR, TILE,
            )  # fmt: skip
        program -= blocks * x.heads
        into = memory_after(x, into, table, WIDTH, False)
    return program, into


@triton.jit
def _sum_block(
    x, known, axis, table, into, NUMBER: tl.constexpr, WIDTH: tl.constexpr, first, head, batches,
    D: tl.constexpr, DV: tl.constexpr, DR: tl.constexpr, TILE: tl.constexpr,
):  # fmt: skip
    """The sums of the rows from `first` under one head."""
    total = tl.zeros((TILE,) if NUMBER == 3 else (TILE, WIDTH), tl.float32)
    for batch_number in range(0, batches):
        batch = head * 0 + batch_number
        k_at, v_at = place(x.k, batch, head // x.group), place(x.v, batch, head // x.group)
        for first_query in range(0, x.queries, TILE):
            start, end_key = key_tiles(x, first_query, TILE, TILE)
            # What does not change from tile to tile is computed in each: it would spill.
            for first_key in tl.range(start, end_key, TILE, disable_licm=True):
                u = rows_of_pairs(x, axis, table, batch, first_query, first_key, TILE) - first
                if tl.max(tl.max(tl.where(u < TILE, u, -1), axis=1), axis=0) >= 0:
                    k = load_rows(k_at, x.k.row, first_key, x.keys, D, TILE)
                    queries = load_queries(x, known, batch, head, first_query, D, DV, DR, TILE)
                    of_keys, of_values = first_halves(x, queries, first_key, WITHIN, DV, DR, TILE)
                    weights, slope, of_keys = weights_again(
                        x, known, queries, of_keys, first_key, k, WITHIN, D, DR, TILE
                    )
                    # Apart from q . k, or the compiler would lay both products along the queries, with too few for all
                    # warps.
                    if tl.sum(tl.sum(weights, axis=1), axis=0) != 0.0:
                        v = load_rows(v_at, x.v.row, first_key, x.keys, DV, TILE)
                        keep = kept_in_tile(x, batch, head, first_query, first_key, TILE)
                        weights, scores, of_values = gradients_again(
                            x, queries, of_values, first_key, keep, weights, v, WITHIN, DV, TILE
                        )  # fmt: skip
                        if x.softcap is not None:
                            scores *= slope
                        total += _of_pairs(x, axis, queries, k, weights, scores, u, NUMBER, TILE)

    start_of_head = into + head.to(tl.int64) * table.rows * WIDTH
    if NUMBER == 3:
        row = first + tl.arange(0, TILE)
        tl.store(start_of_head + row, total, mask=row < table.rows)
    else:
        store_rows(start_of_head, WIDTH, first, table.rows, total, WIDTH, TILE)


@triton.jit
def _of_pairs(x, axis, queries, k, weights, scores, u, NUMBER: tl.constexpr, TILE: tl.constexpr):
    """What the pairs of a tile have for the TILE rows of a block; u: the place of each pair's row in it."""
    if NUMBER == 3:
        sums = tl.sum(by_row(scores, u, False, TILE), axis=0)
    elif NUMBER == 0:
        r = vectors_of(axis, queries.batch, queries.head, queries.first, x.queries, queries.q, TILE)
        sums = dot(tl.trans(by_row(scores, u, False, TILE).to(r.dtype)), r)
    elif NUMBER == 1:
        sums = dot(tl.trans(by_row(scores, u, True, TILE).to(k.dtype)), k)
    else:
        grad_output = queries.grad_output
        sums = dot(tl.trans(by_row(weights, u, False, TILE).to(grad_output.dtype)), grad_output)
    return sums
