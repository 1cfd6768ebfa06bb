"""On explicit axes: the pairs of a tile and the rows of a table, one block of TILE rows after the other.

    r_i . RK[d] + RQ[d] . k_j        dO_i . RV[d]        sum_j P_ij RV[d]        dRK[d] = sum dS_ij r_i

A tile sees the rows from its first offset to its last: on a grid a block or a few. The products of its vectors with a
block are a product of matrices, of which each pair takes its number. On the way back the weights of the pairs are
summed by row, and these sums multiplied with the block, or with the vectors.
"""

# pyright: reportGeneralTypeIssues=false, reportIndexIssue=false

from __future__ import annotations

import triton
import triton.language as tl

from relattn.backends.triton.device.atomic_add import add_rows, first_row
from relattn.backends.triton.device.bands import dot, load_padded_rows, padded
from relattn.backends.triton.device.explicit import KEYS, QUERIES, offsets_of, row_of, table_of, vectors_of
from relattn.backends.triton.device.skew import moved, shared_place

TOGETHER = tl.constexpr(4)
"""How many rows' sums are computed at once: four need fewer barriers than one, and eight spill registers."""


@triton.jit
def rows_of_pairs(x, positions, table, batch, first_query, first_key, TILE: tl.constexpr):
    """The table's row of each pair [i, j] of a tile, -1 where the table adds nothing or a token does not exist."""
    i, j = first_query + tl.arange(0, TILE)[:, None], first_key + tl.arange(0, TILE)[None, :]
    row, there = row_of(table, offsets_of(x, positions, batch, i, j))
    return tl.where(there & (i >= 0) & (i < x.queries) & (j >= 0) & (j < x.keys), row, -1)


@triton.jit
def extent_of(rows, table):
    """The first row of all pairs, and the row after the last; nothing between where no pair has a row."""
    first = tl.min(tl.min(tl.where(rows >= 0, rows, table.rows), axis=1), axis=0)
    return first, tl.max(tl.max(rows, axis=1), axis=0) + 1


@triton.jit
def products_of(vectors, table, head, rows, width, OF_KEYS: tl.constexpr, TILE: tl.constexpr):
    """x_n . table[row] of each pair [i, j], for the vectors of its query, or of its key."""
    n = tl.arange(0, TILE)[None, :] if OF_KEYS else tl.arange(0, TILE)[:, None]
    pairs = tl.zeros((TILE, TILE), tl.float32)
    first, end = extent_of(rows, table)
    for start in range(first, end, TILE):
        products = dot(vectors, tl.trans(_block(table, head, start, width, vectors.shape[1], TILE)))
        u = rows - start
        places = shared_place(n, u & (TILE - 1), TILE)
        pairs += tl.where((u >= 0) & (u < TILE), moved(products, places, TILE), 0.0)
    return pairs


@triton.jit
def sums_of(
    weights, table, head, rows, DTYPE: tl.constexpr, OF_KEYS: tl.constexpr, width, PADDED: tl.constexpr,
    TILE: tl.constexpr,
):  # fmt: skip
    """sum_j weights[i, j] table[row] for each query i [TILE, PADDED]; for each key j the sum over i."""
    total = tl.zeros((TILE, PADDED), tl.float32)
    rows = tl.where(weights != 0.0, rows, -1)
    first, end = extent_of(rows, table)
    for start in range(first, end, TILE):
        sums = by_row(weights, rows - start, OF_KEYS, TILE).to(DTYPE)
        total += dot(sums, _block(table, head, start, width, PADDED, TILE))
    return total


@triton.jit
def add_products(
    into, vectors, weights, table, head, rows, OF_KEYS: tl.constexpr, PADDED: tl.constexpr, TILE: tl.constexpr
):  # fmt: skip
    """Add weights[i, j] x_n to the row of each pair, by atomic instructions; into: [H, 1 + rows + 1, PADDED]."""
    at = first_row(into, head, table.rows, PADDED)
    rows = tl.where(weights != 0.0, rows, -1)
    first, end = extent_of(rows, table)
    for start in range(first, end, TILE):
        sums = by_row(weights, rows - start, OF_KEYS, TILE).to(vectors.dtype)
        add_rows(at, start, table.rows, dot(tl.trans(sums), vectors), PADDED, TILE, True)


@triton.jit
def add_numbers(into, weights, table, head, rows):
    """Add weights[i, j] to the number of each pair, pair by pair; into: [H, rows]."""
    at = into + head.to(tl.int64) * table.rows + rows
    tl.atomic_add(at, weights, mask=(rows >= 0) & (weights != 0.0), sem="relaxed")


@triton.jit
def by_row(weights, u, OF_KEYS: tl.constexpr, TILE: tl.constexpr):
    """[n, u]: the sum of query n's weights over the pairs whose place u[i, j] is u; with OF_KEYS, of key n's."""
    group = tl.arange(0, TILE // TOGETHER)[None, :, None]
    sums = tl.zeros((TILE, TILE // TOGETHER, TOGETHER), tl.float32)
    for first in range(0, TILE, TOGETHER):
        each = first + tl.arange(0, TOGETHER)[None, None, :]
        of_each = tl.sum(tl.where(u[:, :, None] == each, weights[:, :, None], 0.0), axis=0 if OF_KEYS else 1)
        sums += tl.where(group == first // TOGETHER, of_each[:, None, :], 0.0)
    return tl.reshape(sums, (TILE, TILE))


@triton.jit
def with_products(x, batch, head, first_query, first_key, q, k, products, D: tl.constexpr, TILE: tl.constexpr):
    """The products of the pairs, with those of all explicit axes."""
    for n in tl.static_range(len(x.axes)):
        axis = x.axes[n]
        if axis.relative_keys is not None:
            rows = rows_of_pairs(x, axis, axis.relative_keys, batch, first_query, first_key, TILE)
            r = vectors_of(axis, batch, head, first_query, x.queries, q, TILE)
            products += products_of(r, axis.relative_keys, head, rows, axis.relative_width, False, TILE)
        if axis.relative_queries is not None:
            rows = rows_of_pairs(x, axis, axis.relative_queries, batch, first_query, first_key, TILE)
            products += products_of(k, axis.relative_queries, head, rows, D, True, TILE)
    return products


@triton.jit
def with_values(
    x, batch, head, first_query, first_key, grad_output, by_weight, DV: tl.constexpr, TILE: tl.constexpr
):  # fmt: skip
    """dP of the pairs, with dO_i . RV[d] of all explicit axes."""
    for n in tl.static_range(len(x.axes)):
        axis = x.axes[n]
        if axis.relative_values is not None:
            rows = rows_of_pairs(x, axis, axis.relative_values, batch, first_query, first_key, TILE)
            by_weight += products_of(grad_output, axis.relative_values, head, rows, DV, False, TILE)
    return by_weight


@triton.jit
def with_sums(
    x, batch, head, first_query, first_key, weights, total, NUMBER: tl.constexpr, WIDTH: tl.constexpr,
    TILE: tl.constexpr,
):  # fmt: skip
    """O_i, with sum_j P_ij RV[d] of all explicit axes (NUMBER: VALUES); dk_j, with sum_i dS_ij RQ[d] (QUERIES); dq_i,
    with sum_j dS_ij RK[d] of those whose r is q (KEYS).
    """
    dtype: tl.constexpr = x.k.at.dtype.element_ty
    for n in tl.static_range(len(x.axes)):
        axis = x.axes[n]
        table = table_of(axis, NUMBER)
        if table is not None and (NUMBER != KEYS or axis.r is None):
            rows = rows_of_pairs(x, axis, table, batch, first_query, first_key, TILE)
            total += sums_of(weights, table, head, rows, dtype, NUMBER == QUERIES, WIDTH, padded(WIDTH), TILE)
    return total


@triton.jit
def _block(table, head, start, width, PADDED: tl.constexpr, TILE: tl.constexpr):
    """TILE rows of the table, from `start`."""
    at = table.at + head.to(tl.int64) * table.head
    return load_padded_rows(at, table.row, start, table.rows, width, PADDED, TILE)
