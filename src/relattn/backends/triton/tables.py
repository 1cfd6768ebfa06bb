"""Gradients of the tables, along the diagonals. A program owns some offsets and walks over the queries in a fixed
order.

    dRK[d] = scale * sum_i dS_i,i+d r_i      dRQ[d] = scale * sum_i dS_i,i+d k_i+d
    dRV[d] = sum_i P_i,i+d dO_i              db[d]  = sum_i dS_i,i+d

The keys of a tile of queries at T neighbouring offsets lie in two neighbouring tiles of keys. S of both is computed
again as everywhere, and moved to diagonals [i, c]. Offsets beyond a table's rows belong to its edge rows; that part
comes from the sums of `Sides`. No sum depends on the order of programs. With tiles of one size the bits are the same on
every run.
"""

from __future__ import annotations

import math
from collections.abc import Collection
from typing import NamedTuple

import torch
import triton
import triton.language as tl
from jaxtyping import Float
from torch import Tensor

from relattn.backends.triton.bands import dot, load_band, load_numbers, load_rows, padded, place, store_rows
from relattn.backends.triton.call import Call, Table
from relattn.backends.triton.dropout import kept
from relattn.backends.triton.inputs import Inputs, visible_offsets
from relattn.backends.triton.known import Known, Sides, load_lse, score_gradients, weights_of
from relattn.backends.triton.listed import with_values
from relattn.backends.triton.masks import in_reach
from relattn.backends.triton.scores import finished
from relattn.backends.triton.sizes import launch
from relattn.backends.triton.skew import diagonals_from_tiles, tiles_from_diagonals
from relattn.backends.triton.starts import started
from relattn.score.problem import TABLES

BLOCK, PROGRAMS = 64, 512  # keep a large GPU busy; if offsets and heads give fewer, queries are divided, too


class Into(NamedTuple):
    """Memory for a table's sums, [parts, Hq, rows, width], or [parts, Hq, rows] for a bias, from offset `first`."""

    at: Tensor
    part: int
    head: int
    row: int
    first: int
    rows: int


class Sums(NamedTuple):
    """The sums of each table; None where its gradient is not computed."""

    relative_keys: Into | None
    relative_queries: Into | None
    relative_values: Into | None
    bias: Into | None


def sums_of_tables(call: Call, x: Inputs, known: Known, wanted: Collection[str]) -> dict[str, Float[Tensor, "Hq R *W"]]:
    """The sums of each wanted table over the pairs at its offsets, in float32, per query head."""
    tables = {name: getattr(call, name) for name in Sums._fields if name in wanted}
    tables = {name: table for name, table in tables.items() if table is not None}
    found = {
        name: call.query.new_zeros(call.query.shape[1], *table.values.shape[1:], dtype=torch.float32)
        for name, table in tables.items()
    }
    if x.starts is not None:  # no block of offsets is known to belong to two tables
        for name, table in tables.items():
            whole = {name: (0, table.values.shape[1])}
            found[name] += _sums_at(call, x, known, {name: table}, whole, x.starts[TABLES.index(name)])[name]
        return found
    extents = {name: _seen(call, table) for name, table in tables.items()}
    extents = {name: extent for name, extent in extents.items() if extent[0] < extent[1]}
    if extents:
        for name, sums in _sums_at(call, x, known, tables, extents).items():
            start, stop = extents[name]
            found[name][:, start - tables[name].first : stop - tables[name].first] = sums
    return found


def _sums_at(
    call: Call, x: Inputs, known: Known, tables: dict[str, Table], extents: dict[str, tuple[int, int]],
    at: Tensor | None = None,
) -> dict[str, Float[Tensor, "Hq R *W"]]:  # fmt: skip
    """The sums at the offsets of the extents; at: where the first of them stands in memory."""
    heads, queries = call.query.shape[1:3]
    first, end = min(extent[0] for extent in extents.values()), max(extent[1] for extent in extents.values())
    blocks = math.ceil((end - first) / BLOCK)
    parts = max(min(PROGRAMS // (blocks * heads), (queries + call.key.shape[2]) // (end - first)), 1)
    sums = {
        name: call.query.new_empty(parts, heads, stop - start, *tables[name].values.shape[2:], dtype=torch.float32)
        for name, (start, stop) in extents.items()
    }
    into = Sums(**{name: _into(sums.get(name), extents.get(name)) for name in Sums._fields})
    arguments = x, known, into, first if at is None else at, end, call.query.shape[0], parts
    launch(tables_kernel, call, lambda tile: math.ceil((end - first) / tile) * heads * parts, arguments)
    return {name: each.sum(0) for name, each in sums.items()}


def _seen(call: Call, table: Table) -> tuple[int, int]:
    """The first visible offset among the table's rows, and the offset after the last."""
    assert isinstance(table.first, int)
    lowest, highest = visible_offsets(call)
    return max(table.first, lowest), min(table.first + table.values.shape[1], highest + 1)


def _into(sums: Tensor | None, extent: tuple[int, int] | None) -> Into | None:
    if sums is None or extent is None:
        return None
    return Into(sums, sums.stride(0), sums.stride(1), sums.stride(2), extent[0], sums.shape[2])


def table_gradient(call: Call, known: Known, sides: Sides, name: str, total: Float[Tensor, "Hq R *W"]) -> Tensor:
    """The gradient by the values of a table, in their dtype, from the sums at its offsets and those beyond it."""
    table: Table = getattr(call, name)
    edges = getattr(sides, name)
    if edges is not None:
        before, after = _beyond(call, known, name, edges)
        total[:, 0] += before
        total[:, -1] += after
    if name in ("relative_keys", "relative_queries"):
        total *= call.scale
    if table.values.shape[0] == 1:
        total = total.sum(0, keepdim=True)
    return total.to(table.values.dtype)


def _beyond(call: Call, known: Known, name: str, edges: Float[Tensor, "2 B Hq L"]) -> Float[Tensor, "2 Hq *width"]:
    """The edge rows' gradient from the offsets beyond them: the sums of a query, or of a key, times its vector."""
    if name == "bias":
        return edges.sum((1, 3))
    r = call.query if call.relative_query is None else call.relative_query
    vectors = {"relative_keys": r, "relative_queries": call.key}.get(name, known.grad_output.at)
    assert vectors is not None
    grouped = edges.unflatten(2, (vectors.shape[1], -1))  # query heads, by the head of their vectors
    return (grouped @ vectors.to(torch.float32)).sum(1).flatten(1, 2)


@triton.jit
def tables_kernel(
    x, known, into, first, end, batches, parts,
    D: tl.constexpr, DV: tl.constexpr, DR: tl.constexpr, TILE: tl.constexpr,
):  # fmt: skip
    """The sums of one block of offsets in one head over one part of the queries; into: `Sums`.

    Where an origin is a tensor, `first` is a pointer to the first offset of the one table, and `end` the number of its
    rows.
    """
    x = started(x)
    if x.starts is not None:
        first = tl.load(first)
        end = first + end
        into = Sums(
            _from(into.relative_keys, first), _from(into.relative_queries, first),
            _from(into.relative_values, first), _from(into.bias, first),
        )  # fmt: skip
    program, blocks = tl.program_id(0), tl.cdiv(end - first, TILE)
    block, head, part = blocks - 1 - program % blocks, program // blocks % x.heads, program // blocks // x.heads
    offset = first + block * TILE  # with causality the longest diagonals first
    offsets = offset + tl.arange(0, TILE)[None, :]

    if x.relative_keys is not None:
        keys_band = load_band(x.relative_keys, head, offset, DR, TILE)
    if x.relative_queries is not None:
        queries_band = load_band(x.relative_queries, head, offset, D, TILE)
    if x.relative_values is not None:
        values_band = load_band(x.relative_values, head, offset, DV, TILE)
    by_keys = tl.zeros((TILE, padded(DR)), tl.float32)
    by_queries = tl.zeros((TILE, padded(D)), tl.float32)
    by_values = tl.zeros((TILE, padded(DV)), tl.float32)
    by_bias = tl.zeros((TILE,), tl.float32)

    # The queries that have a key at any of the offsets, in every batch element.
    first_query = tl.maximum(x.offset - offset - (TILE - 1), 0) // TILE * TILE
    end_query = tl.minimum(x.keys + x.offset - offset, x.queries)
    tiles = tl.maximum(tl.cdiv(end_query - first_query, TILE), 0)
    steps = tl.cdiv(tiles * batches, parts)
    of_a_batch = tiles
    if x.starts is not None:  # no query may have a key here, and the compiler divides before it asks whether to walk
        of_a_batch = tl.maximum(tiles, 1)
    for step in range(part * steps, tl.minimum((part + 1) * steps, tiles * batches)):
        batch = step // of_a_batch
        start = first_query + step % of_a_batch * TILE
        i = start + tl.arange(0, TILE)[:, None]
        key = start + offset - x.offset

        q = load_rows(place(x.q, batch, head), x.q.row, start, x.queries, D, TILE)
        k_at, v_at = place(x.k, batch, head // x.group), place(x.v, batch, head // x.group)
        k_near = load_rows(k_at, x.k.row, key, x.keys, D, TILE)
        k_far = load_rows(k_at, x.k.row, key + TILE, x.keys, D, TILE)
        products = diagonals_from_tiles(dot(q, tl.trans(k_near)), dot(q, tl.trans(k_far)), TILE)
        if x.relative_keys is not None:
            r = q
            if x.r is not None:
                r = load_rows(place(x.r, batch, head), x.r.row, start, x.queries, DR, TILE)
            products += dot(r, tl.trans(keys_band))
        if x.relative_queries is not None:
            near, far = dot(queries_band, tl.trans(k_near)), dot(queries_band, tl.trans(k_far))
            products += tl.trans(diagonals_from_tiles(near, far, TILE))

        numbers = (batch * x.heads + head).to(tl.int64) * x.queries
        lse, share = load_lse(known, numbers, start, x.queries, TILE)
        delta = load_numbers(known.delta + numbers, start, x.queries, TILE)
        j = i + offsets - x.offset
        every = in_reach(x, start + TILE - 1, key, key + 2 * TILE - 2, offset, offset + TILE - 1)
        scores, slope = finished(x, batch, head, i, j, products, every)
        weights = weights_of(known, scores, lse, share)

        grad_at = place(known.grad_output, batch, head)
        grad_output = load_rows(grad_at, known.grad_output.row, start, x.queries, DV, TILE)
        v_near = load_rows(v_at, x.v.row, key, x.keys, DV, TILE)
        v_far = load_rows(v_at, x.v.row, key + TILE, x.keys, DV, TILE)
        by_weight = diagonals_from_tiles(dot(grad_output, tl.trans(v_near)), dot(grad_output, tl.trans(v_far)), TILE)
        if x.relative_values is not None:
            by_weight += dot(grad_output, tl.trans(values_band))
        by_weight = with_values(x, known.grad_output, batch, head, i, j, by_weight)
        keep = kept(x, batch, head, i, j)
        weights, scores = score_gradients(x, keep, weights, by_weight, delta)
        if x.softcap is not None:
            scores *= slope

        if into.bias is not None:
            by_bias += tl.sum(scores, axis=0)
        if into.relative_values is not None:
            by_values += dot(tl.trans(weights.to(v_near.dtype)), grad_output)
        scores = tl.trans(scores.to(q.dtype))
        if into.relative_keys is not None:
            by_keys += dot(scores, r)
        if into.relative_queries is not None:
            near, far = tiles_from_diagonals(scores, TILE)
            by_queries += dot(near, k_near) + dot(far, k_far)

    if into.relative_keys is not None:
        _store(into.relative_keys, part, head, offset, by_keys, DR, TILE)
    if into.relative_queries is not None:
        _store(into.relative_queries, part, head, offset, by_queries, D, TILE)
    if into.relative_values is not None:
        _store(into.relative_values, part, head, offset, by_values, DV, TILE)
    if into.bias is not None:
        row = offset + tl.arange(0, TILE) - into.bias.first
        at = into.bias.at + part.to(tl.int64) * into.bias.part + head.to(tl.int64) * into.bias.head
        tl.store(at + row, by_bias, mask=(row >= 0) & (row < into.bias.rows))


@triton.jit
def _from(into, first):
    """Sums from this offset on."""
    if into is not None:
        into = Into(into.at, into.part, into.head, into.row, first, into.rows)
    return into


@triton.jit
def _store(into, part, head, offset, sums, WIDTH: tl.constexpr, TILE: tl.constexpr):
    """The block's rows that the table has."""
    at = into.at + part.to(tl.int64) * into.part + head.to(tl.int64) * into.head
    store_rows(at, into.row, offset - into.first, into.rows, sums, WIDTH, TILE)
