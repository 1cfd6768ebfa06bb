"""Deterministic gradients by the tables of explicit axes: a program owns neighbouring rows of one table.

It walks over all tiles that may hold a visible pair. Of a tile without such a row it reads only the positions. One
kernel sums the tables of all axes: its code computes S and dP once, and only what differs from table to table lies in
branches.
"""

# pyright: reportGeneralTypeIssues=false, reportIndexIssue=false

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any, NamedTuple

import triton
import triton.language as tl
from torch import Tensor

from relattn.backends.triton.device.axes import is_summed, memory_after
from relattn.backends.triton.device.bands import dot, load_padded_rows, load_rows, padded, place, two_to_the
from relattn.backends.triton.device.blocks import by_row, rows_of_pairs
from relattn.backends.triton.device.clip_regions import WITHIN
from relattn.backends.triton.device.device_starts import load_starts
from relattn.backends.triton.device.dropout import dropout_keeps_in_tile
from relattn.backends.triton.device.explicit import BIAS, KEYS, QUERIES, VALUES, table_of
from relattn.backends.triton.device.masks import key_tiles
from relattn.backends.triton.device.recompute import first_halves, load_queries, recompute_gradients, recompute_weights


class OwnedRows(NamedTuple):
    """What a program owns: the rows from `first` of one table, under one head.

    axis: its place in the call; -1 where the program owns no rows. table: KEYS .. BIAS. rows, width: of the table in
    memory. at: where the rows of the head begin there.
    """

    axis: Any
    table: Any
    head: Any
    first: Any
    rows: Any
    width: Any
    at: Any


def programs_of_rows(rows: Iterable[Tensor], tile: int) -> int:
    """The number of programs that sum them; rows: [Hq, R, ...] of each table."""
    return sum(each.shape[0] * math.ceil(each.shape[1] / tile) for each in rows)


@triton.jit
def rows_kernel(
    x, inputs, into, batches,
    D: tl.constexpr, DV: tl.constexpr, DR: tl.constexpr, TILE: tl.constexpr,
):  # fmt: skip
    """`sum_rows` of one program."""
    sum_rows(load_starts(x), inputs, into, batches, tl.program_id(0), D, DV, DR, TILE)


@triton.jit
def sum_rows(
    x, inputs, into, batches, program,
    D: tl.constexpr, DV: tl.constexpr, DR: tl.constexpr, TILE: tl.constexpr,
):  # fmt: skip
    """The sums of one block of one table's rows under one head, if the program is one of these; and its number among
    the programs after them. into: `OfAxes.memory`, without spare rows.
    """
    own, program = _owned(x, into, program, D, DV, TILE)
    if own.axis >= 0:
        _sum_block(x, inputs, own, batches, D, DV, DR, TILE)
    return program


@triton.constexpr_function
def _width_of(axis, number, d, dv):
    """The padded width of one of its tables; 1 for a bias."""
    return (two_to_the(axis.log_width), padded(d), padded(dv), 1)[number]


@triton.constexpr_function
def _widest(axes, d, dv):
    """The padded width of the widest table whose gradient is computed; 1 if every one is a bias."""
    return max(_width_of(axis, number, d, dv) for axis in axes for number in range(4) if is_summed(axis.summed, number))


@triton.constexpr_function
def _any_is_summed(axes, number):
    """Whether the gradient of a table of this number is computed on any axis."""
    return any(is_summed(axis.summed, number) for axis in axes)


@triton.jit
def _owned(x, into, program, D: tl.constexpr, DV: tl.constexpr, TILE: tl.constexpr):
    """What the program owns, and its number among those after the programs of rows."""
    axis, table, head, first, rows, width, at = -1, 0, 0, 0, 0, 0, into
    for n in tl.static_range(len(x.axes)):
        for NUMBER in tl.static_range(4):
            if is_summed(x.axes[n].summed, NUMBER):
                its = table_of(x.axes[n], NUMBER)
                blocks = tl.cdiv(its.rows, TILE)
                if (program >= 0) & (program < blocks * x.heads):
                    axis, table, head, first = n, NUMBER, program // blocks, program % blocks * TILE
                    rows, width = tl.cast(its.rows, tl.int32), _width_of(x.axes[n], NUMBER, D, DV)
                    at = into + head.to(tl.int64) * rows * width
                program -= blocks * x.heads
                into = memory_after(x, into, its, _width_of(x.axes[n], NUMBER, D, DV), False)
    return OwnedRows(axis, table, head, first, rows, width, at), program


@triton.jit
def _sum_block(
    x, inputs, own, batches, D: tl.constexpr, DV: tl.constexpr, DR: tl.constexpr, TILE: tl.constexpr
):  # fmt: skip
    """The sums of the rows that a program owns."""
    WIDTH: tl.constexpr = _widest(x.axes, D, DV)
    head = own.head
    of_vectors, of_numbers = tl.zeros((TILE, WIDTH), tl.float32), tl.zeros((TILE,), tl.float32)
    for batch_number in range(0, batches):
        batch = head * 0 + batch_number
        k_at, v_at = place(x.k, batch, head // x.group), place(x.v, batch, head // x.group)
        for first_query in range(0, x.queries, TILE):
            start, end_key = key_tiles(x, batch, head, first_query, TILE, TILE)
            # What does not change from tile to tile is computed in each: it would spill.
            for first_key in tl.range(start, end_key, TILE, disable_licm=True):
                u = _places_of_pairs(x, own, batch, first_query, first_key, TILE)
                if tl.max(tl.max(tl.where(u < TILE, u, -1), axis=1), axis=0) >= 0:
                    k = load_rows(k_at, x.k.row, first_key, x.keys, D, TILE)
                    queries = load_queries(x, inputs, batch, head, first_query, D, DV, DR, TILE)
                    of_keys, of_values = first_halves(x, queries, first_key, WITHIN, DV, DR, TILE)
                    weights, slope, of_keys = recompute_weights(x, queries, of_keys, first_key, k, WITHIN, D, DR, TILE)
                    # Apart from q . k, or the compiler would lay both products along the queries, with too few for all
                    # warps.
                    if tl.sum(tl.sum(weights, axis=1), axis=0) != 0.0:
                        v = load_rows(v_at, x.v.row, first_key, x.keys, DV, TILE)
                        keep = dropout_keeps_in_tile(x, batch, head, first_query, first_key, TILE)
                        weights, scores, of_values = recompute_gradients(
                            x, queries, of_values, first_key, keep, weights, v, WITHIN, DV, TILE
                        )  # fmt: skip
                        if x.softcap is not None:
                            scores *= slope
                        sums = _sums_by_row(x, own, weights, scores, u, TILE)
                        if _any_is_summed(x.axes, BIAS) and own.table == BIAS:
                            of_numbers += tl.sum(sums, axis=0)
                        elif WIDTH > 1:
                            vectors = _vectors(x, inputs, own, batch, first_query, first_key, D, DV, WIDTH, TILE)
                            of_vectors += dot(tl.trans(sums.to(vectors.dtype)), vectors)

    row, column = own.first + tl.arange(0, TILE), tl.arange(0, WIDTH)[None, :]
    if _any_is_summed(x.axes, BIAS) and own.table == BIAS:
        tl.store(own.at + row, of_numbers, mask=row < own.rows)
    elif WIDTH > 1:
        at = own.at + row.to(tl.int64)[:, None] * own.width + column
        tl.store(at, of_vectors, mask=(row < own.rows)[:, None] & (column < own.width))


@triton.jit
def _places_of_pairs(x, own, batch, first_query, first_key, TILE: tl.constexpr):
    """Where the row of each pair [i, j] lies among those that a program owns; it owns 0 .. TILE - 1."""
    rows = tl.full((TILE, TILE), -1, tl.int32)
    for n in tl.static_range(len(x.axes)):
        for NUMBER in tl.static_range(4):
            if is_summed(x.axes[n].summed, NUMBER) and own.axis == n and own.table == NUMBER:
                table = table_of(x.axes[n], NUMBER)
                rows = rows_of_pairs(x, x.axes[n], table, batch, first_query, first_key, TILE)
    return rows - own.first


@triton.jit
def _sums_by_row(x, own, weights, scores, u, TILE: tl.constexpr):
    """What the pairs of a tile have for each own row: [i, u], or [j, u] of relative queries, to be multiplied by the
    vectors of i or j.
    """
    if _any_is_summed(x.axes, VALUES) and own.table == VALUES:
        scores = weights
    if _any_is_summed(x.axes, QUERIES) and own.table == QUERIES:
        scores, u = tl.trans(scores), tl.trans(u)
    return by_row(scores, u, False, TILE)


@triton.jit
def _vectors(
    x, inputs, own, batch, first_query, first_key,
    D: tl.constexpr, DV: tl.constexpr, WIDTH: tl.constexpr, TILE: tl.constexpr,
):  # fmt: skip
    """r_i, k_j or dO_i of a tile [TILE, WIDTH], by which the sums for the own table are multiplied."""
    head = own.head
    vectors = tl.zeros((TILE, WIDTH), x.k.at.dtype.element_ty)
    for n in tl.static_range(len(x.axes)):
        axis = x.axes[n]
        if is_summed(axis.summed, KEYS) and own.axis == n and own.table == KEYS:
            r = x.q
            if axis.r is not None:
                r = axis.r
            r_at = place(r, batch, head)
            vectors = load_padded_rows(r_at, r.row, first_query, x.queries, axis.relative_width, WIDTH, TILE)
    if _any_is_summed(x.axes, QUERIES) and own.table == QUERIES:
        k_at = place(x.k, batch, head // x.group)
        vectors = load_padded_rows(k_at, x.k.row, first_key, x.keys, D, WIDTH, TILE)
    if _any_is_summed(x.axes, VALUES) and own.table == VALUES:
        grad_output = inputs.grad_output
        output_at = place(grad_output, batch, head)
        vectors = load_padded_rows(output_at, grad_output.row, first_query, x.queries, DV, WIDTH, TILE)
    return vectors
