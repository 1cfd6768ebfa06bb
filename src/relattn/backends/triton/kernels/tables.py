"""Deterministic gradients of the tables: the sums at their offsets (diagonals.py), and those beyond, which belong to
the edge rows and come from `Sides`.

No sum depends on the order of programs. With tiles of one size the bits are the same on every run.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from relattn.backends.triton.device.backward_inputs import BackwardInputs, Sides
from relattn.backends.triton.host.call import Call, Table
from relattn.backends.triton.host.kernel_args import KernelArgs
from relattn.backends.triton.host.pack import wanted_tables
from relattn.backends.triton.host.replay import new_memory
from relattn.backends.triton.host.tile_configs import has_room_for_all_tables
from relattn.backends.triton.kernels.diagonals import Diagonals, Sums, SumsMemory
from relattn.equation.problem import TABLES, Differentiable

BLOCK, PROGRAMS = 64, 512  # keep a large GPU busy; if offsets and heads give fewer, queries are divided, too


class TableSums(NamedTuple):
    """The offsets of tables over which sums are taken at once, the memory of each by part, and the rows it is for."""

    diagonals: Diagonals
    sums: dict[str, Float[Tensor, "P Hq n *W"]]
    rows: dict[str, slice]


def tables_to_sum(call: Call, x: KernelArgs, wanted: Differentiable[bool]) -> list[TableSums]:
    """All wanted tables at once. Where there is no room, those of vectors one by one; where an origin is a tensor every
    one, for no block of offsets is known to belong to two tables then.
    """
    tables = wanted_tables(call, wanted)
    if x.starts is not None:
        whole = {name: (0, table.values.shape[1]) for name, table in tables.items()}
        return [_to_sum(call, {name: each}, {name: 0}, x.starts[TABLES.index(name)]) for name, each in whole.items()]
    extents = {name: _visible_extent(call, table) for name, table in tables.items()}
    extents = {name: extent for name, extent in extents.items() if extent[0] < extent[1]}
    firsts = {name: table.first for name, table in tables.items() if isinstance(table.first, int)}
    if not has_room_for_all_tables(call) and len(extents) > 1:
        alone = [name for name in extents if name != "bias"][1:]  # beside a bias, which needs few registers, the first
        together = {name: extent for name, extent in extents.items() if name not in alone}
        return [_to_sum(call, each, firsts) for each in (together, *({name: extents[name]} for name in alone))]
    return [_to_sum(call, extents, firsts)] if extents else []


def _to_sum(
    call: Call, extents: dict[str, tuple[int, int]], firsts: dict[str, int], at: Tensor | None = None
) -> TableSums:
    """The sums at the offsets of the extents; firsts: of the tables; at: where the first offset stands in memory."""
    heads, queries = call.query.shape[1:3]
    first, end = min(extent[0] for extent in extents.values()), max(extent[1] for extent in extents.values())
    blocks = math.ceil((end - first) / BLOCK)
    parts = max(min(PROGRAMS // (blocks * heads), (queries + call.key.shape[2]) // (end - first)), 1)
    sums = {
        name: new_memory(call.query, (parts, heads, stop - start, *getattr(call, name).values.shape[2:]))
        for name, (start, stop) in extents.items()
    }
    into = Sums(**{name: _sums_memory(sums.get(name), extents.get(name)) for name in Sums._fields})
    rows = {name: slice(start - firsts[name], stop - firsts[name]) for name, (start, stop) in extents.items()}
    return TableSums(Diagonals(into, first if at is None else at, end, parts), sums, rows)


def offsets_of(diagonals: Diagonals) -> int:
    """Their number."""
    return diagonals.end - (0 if isinstance(diagonals.first, Tensor) else diagonals.first)


def programs_of_tables(call: Call, diagonals: Diagonals, owned: int) -> int:
    """The number of programs that sum them, if each owns so many offsets."""
    return math.ceil(offsets_of(diagonals) / owned) * call.query.shape[1] * diagonals.parts


def sums_of_tables(
    call: Call, summed: Sequence[TableSums], wanted: Differentiable[bool]
) -> dict[str, Float[Tensor, "Hq R *W"]]:
    """The sums of each wanted table over the pairs at its offsets, in float32, per query head."""
    totals = {
        name: call.query.new_zeros(call.query.shape[1], *table.values.shape[1:], dtype=torch.float32)
        for name, table in wanted_tables(call, wanted).items()
    }
    for each in summed:
        for name, sums in each.sums.items():
            totals[name][:, each.rows[name]] = sums.sum(0)
    return totals


def _visible_extent(call: Call, table: Table) -> tuple[int, int]:
    """The first visible offset among the table's rows, and the offset after the last."""
    assert isinstance(table.first, int)
    lowest, highest = call.visible_offsets
    return max(table.first, lowest), min(table.first + table.values.shape[1], highest + 1)


def _sums_memory(sums: Tensor | None, extent: tuple[int, int] | None) -> SumsMemory | None:
    if sums is None or extent is None:
        return None
    return SumsMemory(sums, sums.stride(0), sums.stride(1), sums.stride(2), extent[0], sums.shape[2])


def table_gradient(
    call: Call, inputs: BackwardInputs, sides: Sides, name: str, total: Float[Tensor, "Hq R *W"]
) -> Tensor:
    """The gradient by the values of a table, in their dtype, from the sums at its offsets and those beyond it."""
    table: Table = getattr(call, name)
    edges = getattr(sides, name)
    if edges is not None:
        before, after = _beyond(call, inputs, name, edges)
        total[:, 0] += before
        total[:, -1] += after
    return of_values(call, name, table, total)


def of_values(call: Call, name: str, table: Table, total: Float[Tensor, "Hq R *W"]) -> Float[Tensor, "H R *W"]:
    """The gradient by the values of a table, in their dtype, from the sums of all pairs, which it may change."""
    if name in ("relative_keys", "relative_queries"):
        total *= call.scale
    if table.values.shape[0] == 1:
        total = total.sum(0, keepdim=True)
    return total.to(table.values.dtype).contiguous()


def _beyond(
    call: Call, inputs: BackwardInputs, name: str, edges: Float[Tensor, "2 B Hq L"]
) -> Float[Tensor, "2 Hq *width"]:
    """The edge rows' gradient from the offsets beyond them: the sums of a query, or of a key, times its vector."""
    if name == "bias":
        return edges.sum((1, 3))
    r = call.query if call.relative_query is None else call.relative_query
    vectors = {"relative_keys": r, "relative_queries": call.key}.get(name, inputs.grad_output.at)
    assert vectors is not None
    grouped = edges.unflatten(2, (vectors.shape[1], -1))  # query heads, by the head of their vectors
    return (grouped @ vectors.to(torch.float32)).sum(1).flatten(1, 2)
