"""Axes on which every token has its own position: each pair looks its row of a table up.

    d_ij = p(j) - p(i)        r_i . RK[d] + RQ[d] . k_j        b[d]        dO_i . RV[d]        sum_j P_ij RV[d]

The products go along the features: for one feature at a time a pair loads its number of the table. So nothing depends
on how far the positions of a tile spread, and (i, j) may be any pairs that broadcast.
"""

# pyright: reportGeneralTypeIssues=false, reportIndexIssue=false

from __future__ import annotations

import triton
import triton.language as tl

from relattn.backends.triton.bands import padded, place


@triton.jit
def offsets_of(x, lists, batch, i, j):
    """d_ij in int64, from the positions of a batch element; any number where a token does not exist."""
    batch = batch.to(tl.int64)
    query_at, key_at = lists.queries + batch * lists.queries_batch, lists.keys + batch * lists.keys_batch
    p_i = tl.load(query_at + i, mask=(i >= 0) & (i < x.queries), other=0)
    return tl.load(key_at + j, mask=(j >= 0) & (j < x.keys), other=0) - p_i


@triton.jit
def row_of(table, offsets):
    """The row of each offset, and whether the table adds anything there.

    An offset leaves int64 when it is less the first row's, and cut off at the table's ends.
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
def feature_of(rows, batch, head, index, count, feature):
    """One feature of the rows `index` of a tensor, in float32; 0 where there is no such row."""
    at = place(rows, batch, head) + feature + index.to(tl.int64) * rows.row
    return tl.load(at, mask=(index >= 0) & (index < count), other=0.0).to(tl.float32)


@triton.jit
def products_of(rows, batch, row_head, index, count, table, head, offsets, width):
    """x_n . table[d] for the rows x_n at `index`, which broadcasts to the offsets."""
    row, there = row_of(table, offsets)
    products = tl.zeros(offsets.shape, tl.float32)
    for feature in range(0, width):
        of_rows = feature_of(rows, batch, row_head, index, count, feature)
        products += of_rows * number_at(table, head, row, there, feature)
    return products


@triton.jit
def with_products(x, batch, head, i, j, products):
    """The products of the pairs, with those of all listed axes."""
    for n in tl.static_range(len(x.axes)):
        axis = x.axes[n]
        offsets = offsets_of(x, axis, batch, i, j)
        if axis.relative_keys is not None:
            products += products_of(
                axis.r, batch, head, i, x.queries, axis.relative_keys, head, offsets, axis.relative_width
            )
        if axis.relative_queries is not None:
            products += products_of(
                x.k, batch, head // x.group, j, x.keys, axis.relative_queries, head, offsets, axis.width
            )
    return products


@triton.jit
def with_biases(x, batch, head, i, j, scores, factor):
    """The scores of the pairs, with `factor` times the biases of all listed axes."""
    for n in tl.static_range(len(x.axes)):
        axis = x.axes[n]
        if axis.bias is not None:
            row, there = row_of(axis.bias, offsets_of(x, axis, batch, i, j))
            scores += factor * number_at(axis.bias, head, row, there, 0)
    return scores


@triton.jit
def with_values(x, grad_output, batch, head, i, j, by_weight):
    """dP of the pairs, with dO_i . RV[d] of all listed axes."""
    for n in tl.static_range(len(x.axes)):
        axis = x.axes[n]
        if axis.relative_values is not None:
            offsets = offsets_of(x, axis, batch, i, j)
            by_weight += products_of(
                grad_output, batch, head, i, x.queries, axis.relative_values, head, offsets, axis.value_width
            )
    return by_weight


@triton.jit
def sums_of(weights, table, head, offsets, width, AXIS: tl.constexpr, WIDTH: tl.constexpr):
    """sum_j weights[i, j] table[d_ij], a row for each i [n, padded width]; with AXIS 0 the sum over i, for each j."""
    row, there = row_of(table, offsets)
    column = tl.arange(0, padded(WIDTH))[None, :]
    total = tl.zeros((weights.shape[1 - AXIS], padded(WIDTH)), tl.float32)
    for feature in range(0, width):
        sums = tl.sum(weights * number_at(table, head, row, there, feature), axis=AXIS)
        total += tl.where(column == feature, sums[:, None], 0.0)
    return total


@triton.jit
def with_value_sums(x, batch, head, i, j, weights, total, DV: tl.constexpr):
    """O_i of the pairs' weights, with sum_j P_ij RV[d] of all listed axes."""
    for n in tl.static_range(len(x.axes)):
        axis = x.axes[n]
        if axis.relative_values is not None:
            offsets = offsets_of(x, axis, batch, i, j)
            total += sums_of(weights, axis.relative_values, head, offsets, axis.value_width, 1, DV)
    return total


@triton.jit
def with_value_rows(x, batch, head, i, j, values, DV: tl.constexpr):
    """v_j [n, padded DV], with RV[d] of all listed axes, for one query i."""
    column = tl.arange(0, padded(DV))[None, :]
    for n in tl.static_range(len(x.axes)):
        axis = x.axes[n]
        if axis.relative_values is not None:
            row, there = row_of(axis.relative_values, offsets_of(x, axis, batch, i, j))
            inside = there[:, None] & (column < DV)
            values += number_at(axis.relative_values, head, row[:, None], inside, column)
    return values


@triton.jit
def with_query_gradient(x, batch, head, i, j, scores, total, D: tl.constexpr):
    """dq_i, with sum_j dS_ij RK[d] of the listed axes whose r is q."""
    for n in tl.static_range(len(x.axes)):
        axis = x.axes[n]
        if axis.relative_keys is not None and axis.owns_r is None:
            offsets = offsets_of(x, axis, batch, i, j)
            total += sums_of(scores, axis.relative_keys, head, offsets, axis.width, 1, D)
    return total


@triton.jit
def with_key_gradient(x, batch, head, i, j, scores, total, D: tl.constexpr):
    """dk_j, with sum_i dS_ij RQ[d] of all listed axes."""
    for n in tl.static_range(len(x.axes)):
        axis = x.axes[n]
        if axis.relative_queries is not None:
            offsets = offsets_of(x, axis, batch, i, j)
            total += sums_of(scores, axis.relative_queries, head, offsets, axis.width, 0, D)
    return total
