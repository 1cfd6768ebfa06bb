"""Gradients by what axes have on which every token has its own position: their r, and their tables. Each axis has its
own launches.

    dr_i = scale * sum_j dS_ij RK[d]        dRK[d] = scale * sum dS_ij r_i        dRQ[d] = scale * sum dS_ij k_j
                                            dRV[d] = sum P_ij dO_i                db[d]  = sum dS_ij

S and dP are computed again. One kernel owns a tile of queries: it sums dr on chip, and adds what a tile of pairs has
for each row of a table to memory, by atomic instructions; for a bias, what each pair has. In a fixed order another
kernel owns neighbouring rows of one table, and walks over all pairs. Of a tile of pairs without such a row it
reads only the positions.
"""

# pyright: reportGeneralTypeIssues=false

from __future__ import annotations

import math
from collections.abc import Collection
from typing import NamedTuple

import torch
import triton
import triton.language as tl
from jaxtyping import Float
from torch import Tensor

from relattn.backends.problem_arguments import on_axis
from relattn.backends.triton.across import with_spare_rows, without_spare_rows
from relattn.backends.triton.again import first_halves, load_queries, pairs_again
from relattn.backends.triton.bands import dot, head_of, load_rows, padded, place, store_rows
from relattn.backends.triton.blocks import add_numbers, add_products, by_row, numbers_by_row, rows_of_pairs, sums_of
from relattn.backends.triton.bundles import Inputs, Listed
from relattn.backends.triton.call import Call, ListedAxis, Table
from relattn.backends.triton.known import Known
from relattn.backends.triton.listed import vectors_of
from relattn.backends.triton.masks import key_tiles
from relattn.backends.triton.sizes import launch
from relattn.backends.triton.starts import started
from relattn.backends.triton.stretches import WITHIN
from relattn.score.problem import TABLES


class Sums(NamedTuple):
    """Memory for the sums of each table, in float32; None where not computed. What is added to: [Hq, 1 + R + 1, width],
    as in `Across`; what one program stores: [Hq, R, width]. For a bias [Hq, R].
    """

    relative_keys: Tensor | None
    relative_queries: Tensor | None
    relative_values: Tensor | None
    bias: Tensor | None


def gradients_of_axes(
    call: Call, x: Inputs, known: Known, wanted: Collection[str], *, ordered: bool
) -> dict[str, Tensor]:
    """The wanted gradients by r and tables of the listed axes, under their names in the problem."""
    found = {}
    for axis, listed in zip(call.axes, x.axes, strict=True):
        for name, gradient in _of_axis(call, x, known, axis, listed, wanted, ordered).items():
            found[on_axis(name, axis.number)] = gradient
    return found


def _of_axis(
    call: Call, x: Inputs, known: Known, axis: ListedAxis, listed: Listed, wanted: Collection[str], ordered: bool
) -> dict[str, Tensor]:
    """The gradients of one axis, by the names of its fields."""
    batch, heads, queries = call.query.shape[:3]
    relative, relative_width = None, listed.relative_width
    if axis.relative_query is not None and on_axis("relative_query", axis.number) in wanted:
        relative = axis.relative_query.new_empty(axis.relative_query.shape)
    tables = {name: getattr(axis, name) for name in TABLES if on_axis(name, axis.number) in wanted}
    tables = {name: table for name, table in tables.items() if table is not None}
    of_heads = {name: table.values.expand(heads, *table.values.shape[1:]) for name, table in tables.items()}
    memory = {} if ordered else {name: with_spare_rows(name, values) for name, values in of_heads.items()}
    if relative is not None or memory:

        def programs(tile: int) -> int:
            return math.ceil(queries / tile) * batch * heads

        into = Sums(**{name: memory.get(name) for name in TABLES})
        arguments, more = (x, known, listed, relative, into), {"DA": relative_width}
        launch(axis_kernel, call, programs, arguments, added=list(memory.values()), more=more)
    if ordered:
        sums = {name: values.new_zeros(values.shape, dtype=torch.float32) for name, values in of_heads.items()}
    else:
        sums = {name: without_spare_rows(name, each) for name, each in memory.items()}
    if ordered:
        for name, table in tables.items():
            _sum_rows(call, x, known, listed, name, table, sums[name])
    found = {name: _finished(call, name, table, sums[name]) for name, table in tables.items()}
    return found if relative is None else found | {"relative_query": relative}


def _sum_rows(
    call: Call, x: Inputs, known: Known, listed: Listed, name: str, table: Table, sums: Float[Tensor, "Hq R *W"]
) -> None:
    """The sums of one table, by the programs that own its rows."""
    heads, count = sums.shape[:2]
    into = Sums(**{each: sums if each == name else None for each in TABLES})
    arguments = x, known, listed, getattr(listed, name), into, call.query.shape[0]
    width = 1 if sums.dim() == 2 else sums.shape[2]
    kernel = bias_rows_kernel if name == "bias" else rows_kernel
    launch(kernel, call, lambda tile: math.ceil(count / tile) * heads, arguments, more={"DA": width})


def _finished(call: Call, name: str, table: Table, sums: Float[Tensor, "Hq R *W"]) -> Float[Tensor, "H R *W"]:
    """The gradient by the values of a table, in their dtype."""
    if name in ("relative_keys", "relative_queries"):
        sums = sums * call.scale
    sums = sums.sum(0, keepdim=True) if table.values.shape[0] == 1 else sums
    return sums.to(table.values.dtype).contiguous()


@triton.jit
def axis_kernel(
    x, known, axis, grad_relative, into,
    D: tl.constexpr, DV: tl.constexpr, DR: tl.constexpr, DA: tl.constexpr, TILE: tl.constexpr,
):  # fmt: skip
    """dr of one tile of queries under one head, and what its pairs add to the axis' tables; into: `Sums`."""
    x = started(x)
    tiles = tl.cdiv(x.queries, TILE)
    row = tl.program_id(0) // tiles
    batch, head = row // x.heads, row % x.heads
    first_query = (tiles - 1 - tl.program_id(0) % tiles) * TILE
    k_at, v_at = place(x.k, batch, head // x.group), place(x.v, batch, head // x.group)
    by_relative = tl.zeros((TILE, padded(DA)), tl.float32)

    first_key, end_key = key_tiles(x, first_query, TILE, TILE)
    queries = load_queries(x, known, batch, head, first_query, D, DV, DR, TILE)
    halves = first_halves(x, queries, first_key, WITHIN, DV, DR, TILE)
    for start in range(first_key, end_key, TILE):
        k = load_rows(k_at, x.k.row, start, x.keys, D, TILE)
        v = load_rows(v_at, x.v.row, start, x.keys, DV, TILE)
        weights, scores, slope, halves = pairs_again(
            x, known, queries, halves, start, k, v, WITHIN, D, DV, DR, TILE
        )  # fmt: skip
        if x.softcap is not None:
            scores *= slope
        if grad_relative is not None:
            rows = rows_of_pairs(x, axis, axis.relative_keys, batch, first_query, start, TILE)
            by_relative += sums_of(scores, axis.relative_keys, head, rows, k.dtype, False, DA, TILE)
        if into.relative_keys is not None:
            rows = rows_of_pairs(x, axis, axis.relative_keys, batch, first_query, start, TILE)
            r = vectors_of(axis, batch, head, first_query, x.queries, queries.q, TILE)
            add_products(into.relative_keys, r, scores, axis.relative_keys, head, rows, False, DA, TILE)
        if into.relative_queries is not None:
            rows = rows_of_pairs(x, axis, axis.relative_queries, batch, first_query, start, TILE)
            add_products(into.relative_queries, k, scores, axis.relative_queries, head, rows, True, D, TILE)
        if into.relative_values is not None:
            rows = rows_of_pairs(x, axis, axis.relative_values, batch, first_query, start, TILE)
            add_products(
                into.relative_values, queries.grad_output, weights, axis.relative_values, head, rows, False, DV, TILE
            )  # fmt: skip
        if into.bias is not None:
            rows = rows_of_pairs(x, axis, axis.bias, batch, first_query, start, TILE)
            add_numbers(into.bias, scores, axis.bias, head, rows)
    if grad_relative is not None:
        at = head_of(grad_relative, row, x.queries, DA)
        store_rows(at, DA, first_query, x.queries, by_relative * x.scale, DA, TILE)


@triton.jit
def rows_kernel(
    x, known, axis, table, into, batches,
    D: tl.constexpr, DV: tl.constexpr, DR: tl.constexpr, DA: tl.constexpr, TILE: tl.constexpr,
):  # fmt: skip
    """The sums of one block of a table's rows under one head; into: `Sums`, of which one is there."""
    x = started(x)
    blocks = tl.cdiv(table.rows, TILE)
    first, head = tl.program_id(0) % blocks * TILE, tl.program_id(0) // blocks
    own = tl.arange(0, TILE)
    total = tl.zeros((TILE, padded(DA)), tl.float32)
    by_bias = tl.zeros((TILE,), tl.float32)
    for batch_number in range(0, batches):
        batch = head * 0 + batch_number
        k_at, v_at = place(x.k, batch, head // x.group), place(x.v, batch, head // x.group)
        for first_query in range(0, x.queries, TILE):
            start, end_key = key_tiles(x, first_query, TILE, TILE)
            # What does not change from tile to tile is computed in each: it would spill.
            for first_key in tl.range(start, end_key, TILE, disable_licm=True):
                rows = rows_of_pairs(x, axis, table, batch, first_query, first_key, TILE)
                u = rows - first
                if tl.max(tl.max(tl.where(u < TILE, u, -1), axis=1), axis=0) >= 0:
                    k = load_rows(k_at, x.k.row, first_key, x.keys, D, TILE)
                    v = load_rows(v_at, x.v.row, first_key, x.keys, DV, TILE)
                    queries = load_queries(x, known, batch, head, first_query, D, DV, DR, TILE)
                    halves = first_halves(x, queries, first_key, WITHIN, DV, DR, TILE)
                    weights, scores, slope, _ = pairs_again(
                        x, known, queries, halves, first_key, k, v, WITHIN, D, DV, DR, TILE
                    )  # fmt: skip
                    if x.softcap is not None:
                        scores *= slope
                    if into.relative_keys is not None:
                        r = vectors_of(axis, batch, head, first_query, x.queries, queries.q, TILE)
                        total += dot(tl.trans(by_row(scores, u, False, TILE).to(r.dtype)), r)
                    if into.relative_queries is not None:
                        total += dot(tl.trans(by_row(scores, u, True, TILE).to(k.dtype)), k)
                    if into.relative_values is not None:
                        sums = by_row(weights, u, False, TILE).to(queries.grad_output.dtype)
                        total += dot(tl.trans(sums), queries.grad_output)
                    if into.bias is not None:
                        by_bias += numbers_by_row(scores, u, TILE)

    start_of_head = head.to(tl.int64) * table.rows
    if into.bias is not None:
        tl.store(into.bias + start_of_head + first + own, by_bias, mask=first + own < table.rows)
    if into.relative_keys is not None:
        store_rows(into.relative_keys + start_of_head * DA, DA, first, table.rows, total, DA, TILE)
    if into.relative_queries is not None:
        store_rows(into.relative_queries + start_of_head * DA, DA, first, table.rows, total, DA, TILE)
    if into.relative_values is not None:
        store_rows(into.relative_values + start_of_head * DA, DA, first, table.rows, total, DA, TILE)


@triton.jit
def bias_rows_kernel(
    x, known, axis, table, into, batches,
    D: tl.constexpr, DV: tl.constexpr, DR: tl.constexpr, DA: tl.constexpr, TILE: tl.constexpr,
):  # fmt: skip
    """`rows_kernel` for a bias. It multiplies less, and takes one warp."""
    rows_kernel(x, known, axis, table, into, batches, D, DV, DR, DA, TILE)
