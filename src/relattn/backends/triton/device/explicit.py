"""Axes on which every token has its own position: each pair looks its row of a table up.

d_ij = p(j) - p(i)        b[d] of any pairs (i, j) that broadcast
r_i . RK[d] + RQ[d] . k_j and v_j + RV[d] of one query and some keys; those of a tile of queries are in `blocks.py`
"""

# pyright: reportGeneralTypeIssues=false, reportIndexIssue=false

from __future__ import annotations

import triton
import triton.language as tl

from relattn.backends.triton.device.bands import load_padded_rows, padded, place, two_to_the
from relattn.backends.triton.device.biases import numbers_at
from relattn.backends.triton.device.positions import positions_of

KEYS, QUERIES, VALUES, BIAS = tl.constexpr(0), tl.constexpr(1), tl.constexpr(2), tl.constexpr(3)
"""The numbers of an axis' tables, as in TABLES."""


@triton.jit
def offsets_of(x, positions, batch, i, j):
    """d_ij in int64, from the positions of a batch element; any number where a token does not exist."""
    return positions_of(positions.keys, batch, j, x.keys) - positions_of(positions.queries, batch, i, x.queries)


@triton.jit
def table_of(axis, NUMBER: tl.constexpr):
    """The table of this number, or None."""
    if NUMBER == KEYS:
        table = axis.relative_keys
    elif NUMBER == QUERIES:
        table = axis.relative_queries
    elif NUMBER == VALUES:
        table = axis.relative_values
    else:
        table = axis.bias
    return table


@triton.jit
def row_of(table, offsets):
    """The row of each offset, and whether the table adds anything there.

    The first row's offset is subtracted, and the result is cut off at the table's ends, in int64. Then 32 bits hold it.
    """
    index = offsets - table.first
    row = tl.minimum(tl.maximum(index, 0), tl.cast(table.rows - 1, tl.int64))
    there = tl.full(index.shape, True, tl.int1)
    if table.zero is not None:
        there = index == row
    return row.to(tl.int32), there


@triton.jit
def number_at(table, head, row, there, feature):
    """One feature of the rows, in float32; 0 where the table adds nothing."""
    at = table.at + head.to(tl.int64) * table.head + feature
    return tl.load(at + row.to(tl.int64) * table.row, mask=there, other=0.0).to(tl.float32)


@triton.jit
def with_biases(x, batch, head, i, j, scores, factor):
    """The scores of the pairs, with `factor` times the biases of all explicit axes."""
    for n in tl.static_range(len(x.axes)):
        axis = x.axes[n]
        if axis.bias is not None:
            row, there = row_of(axis.bias, offsets_of(x, axis, batch, i, j))
            at = axis.bias.at + head.to(tl.int64) * axis.bias.head
            bias = numbers_at(at + row)
            scores += factor * tl.where(there, bias, 0.0)
    return scores


@triton.jit
def vectors_of(axis, batch, head, first, count, q, TILE: tl.constexpr):
    """The axis' r_i of TILE queries, whose rows of q are here."""
    r = q
    if axis.r is not None:
        PADDED: tl.constexpr = two_to_the(axis.log_width)
        r = load_padded_rows(place(axis.r, batch, head), axis.r.row, first, count, axis.relative_width, PADDED, TILE)
    return r


@triton.jit
def with_products_of_query(x, batch, head, i, j, q, k, products, D: tl.constexpr):
    """The products of one query i with keys j [n], with those of explicit axes. q [1, padded D], k [n, padded D]."""
    for n in tl.static_range(len(x.axes)):
        axis = x.axes[n]
        if axis.relative_keys is not None:
            r = vectors_of(axis, batch, head, i, x.queries, q, 1)
            rows = rows_at(x, axis, axis.relative_keys, batch, head, i, j, axis.relative_width, r.shape[1])
            products += tl.sum(r.to(tl.float32) * rows, axis=1)
        if axis.relative_queries is not None:
            products += tl.sum(k * rows_at(x, axis, axis.relative_queries, batch, head, i, j, D, padded(D)), axis=1)
    return products


@triton.jit
def with_value_rows(x, batch, head, i, j, values, DV: tl.constexpr):
    """v_j [n, padded DV], with RV[d] of all explicit axes, for one query i."""
    for n in tl.static_range(len(x.axes)):
        axis = x.axes[n]
        if axis.relative_values is not None:
            values += rows_at(x, axis, axis.relative_values, batch, head, i, j, DV, padded(DV))
    return values


@triton.jit
def rows_at(x, positions, table, batch, head, i, j, width, PADDED: tl.constexpr):
    """The table's rows of one query i and keys j [n, PADDED], in float32; 0 where it adds nothing."""
    column = tl.arange(0, PADDED)[None, :]
    row, there = row_of(table, offsets_of(x, positions, batch, i, j))
    return number_at(table, head, row[:, None], there[:, None] & (column < width), column)
