"""The launches for sums that one program owns: of tables at their offsets, of rows of the tables of axes, of a float
mask. One takes all of a call but the rows of further axes.
"""

# pyright: reportIndexIssue=false

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import triton
import triton.language as tl
from torch import Tensor

from relattn.backends.problem_arguments import on_axis
from relattn.backends.triton.axes import OfAxes
from relattn.backends.triton.bundles import Inputs, Pairs
from relattn.backends.triton.call import Call
from relattn.backends.triton.candidates import tiles_of_a_program
from relattn.backends.triton.diagonals import Diagonals, programs_of, sum_diagonals, tables_kernel
from relattn.backends.triton.known import Known
from relattn.backends.triton.mask_gradient import mask_kernel, programs_of_mask, sum_pairs
from relattn.backends.triton.owned_rows import programs_of_rows, rows_kernel, sum_rows
from relattn.backends.triton.sizes import architecture_of, launch
from relattn.backends.triton.starts import started
from relattn.backends.triton.tables import offsets_of, programs_of_tables
from relattn.score.problem import TABLES


def launch_sums(
    call: Call, x: Inputs, known: Known, diagonals: Sequence[Diagonals], of_axes: OfAxes, mask: Pairs | None
) -> None:  # fmt: skip
    """Sum into the memory of each. of_axes: without spare rows. Every axis after the first has a launch of its own: one
    kernel for all would take minutes to compile.
    """
    batches, rest = call.query.shape[0], _by_axis(call, of_axes)
    first = rest[:1]
    if len(diagonals) + len(first) + (mask is not None) > 1:

        def programs(tile: int) -> int:
            of_tables = sum(programs_of_tables(call, each, tile) for each in diagonals)
            of_rows = sum(programs_of_rows(rows, tile) for _, rows in first)
            return of_tables + of_rows + (0 if mask is None else programs_of_mask(mask, tile))

        rest = rest[1:]
        place, rows = first[0] if first else (0, [None])
        launch(
            several_kernel, call, programs, (x, known, tuple(diagonals), rows[0], mask, batches), more={"AXIS": place}
        )
    elif diagonals:
        tiles = tiles_of_a_program(tables_kernel, call, offsets_of(diagonals[0]), architecture_of(call))
        launch(
            tables_kernel, call, lambda tile: programs_of_tables(call, diagonals[0], tiles * tile),
            (x, known, diagonals[0], batches), more={"TILES": tiles},
        )  # fmt: skip
    elif mask is not None:
        launch(mask_kernel, call, lambda tile: programs_of_mask(mask, tile), (x, known, mask, batches))
    for place, rows in rest:
        launch(rows_kernel, call, partial(programs_of_rows, rows), (x, known, rows[0], batches), more={"AXIS": place})


def _by_axis(call: Call, of_axes: OfAxes) -> list[tuple[int, list[Tensor]]]:
    """The places of the axes that have wanted tables, and the memory of these: that of the first is where it begins."""
    found = []
    for place, axis in enumerate(call.axes):
        names = [on_axis(name, axis.number) for name in TABLES]
        if rows := [of_axes.rows[name] for name in names if name in of_axes.rows]:
            found.append((place, rows))
    return found


@triton.jit
def several_kernel(
    x, known, diagonals, rows, mask, batches,
    D: tl.constexpr, DV: tl.constexpr, DR: tl.constexpr, AXIS: tl.constexpr, TILE: tl.constexpr,
):  # fmt: skip
    """What one program sums of more than one: the programs of each come one after the other. rows: of the axis at the
    place AXIS in the call.
    """
    x = started(x)
    program = tl.program_id(0)
    for n in tl.static_range(len(diagonals)):
        count = programs_of(x, diagonals[n], 1, TILE)
        if (program >= 0) & (program < count):
            sum_diagonals(x, known, diagonals[n], batches, program, D, DV, DR, 1, TILE)
        program -= count
    if rows is not None:
        program = sum_rows(x, known, rows, batches, program, D, DV, DR, AXIS, TILE)
    if mask is not None:
        is_of_mask = program >= 0
        if is_of_mask:
            sum_pairs(x, known, mask, batches, program, D, DV, DR, TILE)
