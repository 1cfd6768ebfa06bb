"""Gradients of the tables in a fixed order: the sums at their offsets (diagonals.py), and those beyond, which belong to
the edge rows and come from `Sides`.

No sum depends on the order of programs. With tiles of one size the bits are the same on every run.
"""

from __future__ import annotations

import math
from collections.abc import Collection

import torch
from jaxtyping import Float
from torch import Tensor

from relattn.backends.triton.bundles import Inputs
from relattn.backends.triton.call import Call, Table
from relattn.backends.triton.candidates import tiles_of_a_program
from relattn.backends.triton.diagonals import Into, Sums, tables_kernel
from relattn.backends.triton.inputs import visible_offsets
from relattn.backends.triton.known import Known, Sides
from relattn.backends.triton.sizes import architecture_of, launch
from relattn.score.problem import TABLES

BLOCK, PROGRAMS = 64, 512  # keep a large GPU busy; if offsets and heads give fewer, queries are divided, too


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
    tiles = tiles_of_a_program(tables_kernel, call, end - first, architecture_of(call))

    def programs(tile: int) -> int:
        return math.ceil((end - first) / (tiles * tile)) * heads * parts

    launch(tables_kernel, call, programs, arguments, more={"TILES": tiles})
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
    return total.to(table.values.dtype).contiguous()


def _beyond(call: Call, known: Known, name: str, edges: Float[Tensor, "2 B Hq L"]) -> Float[Tensor, "2 Hq *width"]:
    """The edge rows' gradient from the offsets beyond them: the sums of a query, or of a key, times its vector."""
    if name == "bias":
        return edges.sum((1, 3))
    r = call.query if call.relative_query is None else call.relative_query
    vectors = {"relative_keys": r, "relative_queries": call.key}.get(name, known.grad_output.at)
    assert vectors is not None
    grouped = edges.unflatten(2, (vectors.shape[1], -1))  # query heads, by the head of their vectors
    return (grouped @ vectors.to(torch.float32)).sum(1).flatten(1, 2)
