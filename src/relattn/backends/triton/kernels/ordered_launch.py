"""One launch for all sums that single programs own: of tables at their offsets, of rows of the tables of axes, of a
float mask.
"""

# pyright: reportIndexIssue=false

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import triton
import triton.language as tl

from relattn.backends.triton.device.axes import OfAxes
from relattn.backends.triton.device.backward_inputs import BackwardInputs
from relattn.backends.triton.device.device_starts import load_starts
from relattn.backends.triton.host.autotune import architecture_of, launch
from relattn.backends.triton.host.call import Call
from relattn.backends.triton.host.kernel_args import KernelArgs, Pairs
from relattn.backends.triton.host.tile_configs import tiles_of_a_program
from relattn.backends.triton.kernels.diagonals import Diagonals, programs_of, sum_diagonals, tables_kernel
from relattn.backends.triton.kernels.mask_gradient import mask_kernel, programs_of_mask, sum_pairs
from relattn.backends.triton.kernels.ordered_axis_grads import programs_of_rows, rows_kernel, sum_rows
from relattn.backends.triton.kernels.tables import offsets_of, programs_of_tables


def launch_ordered(
    call: Call,
    x: KernelArgs,
    inputs: BackwardInputs,
    diagonals: Sequence[Diagonals],
    of_axes: OfAxes,
    mask: Pairs | None,
) -> None:
    """Sum into the memory of each. of_axes: without spare rows."""
    batches, rows = call.query.shape[0], of_axes.rows.values()
    if len(diagonals) + (of_axes.memory is not None) + (mask is not None) > 1:

        def programs(tile: int) -> int:
            table_programs = sum(programs_of_tables(call, each, tile) for each in diagonals)
            return table_programs + programs_of_rows(rows, tile) + (0 if mask is None else programs_of_mask(mask, tile))

        launch(several_kernel, call, programs, (x, inputs, tuple(diagonals), of_axes.memory, mask, batches))
    elif diagonals:
        tiles = tiles_of_a_program(tables_kernel, call, offsets_of(diagonals[0]), architecture_of(call))
        launch(
            tables_kernel, call, lambda tile: programs_of_tables(call, diagonals[0], tiles * tile),
            (x, inputs, diagonals[0], batches), more={"TILES": tiles},
        )  # fmt: skip
    elif of_axes.memory is not None:
        launch(rows_kernel, call, partial(programs_of_rows, rows), (x, inputs, of_axes.memory, batches))
    elif mask is not None:
        launch(mask_kernel, call, lambda tile: programs_of_mask(mask, tile), (x, inputs, mask, batches))


@triton.jit
def several_kernel(
    x, inputs, diagonals, rows, mask, batches,
    D: tl.constexpr, DV: tl.constexpr, DR: tl.constexpr, TILE: tl.constexpr,
):  # fmt: skip
    """What one program sums of more than one: the programs of each come one after the other. rows: `OfAxes.memory`."""
    x = load_starts(x)
    program = tl.program_id(0)
    for n in tl.static_range(len(diagonals)):
        count = programs_of(x, diagonals[n], 1, TILE)
        if (program >= 0) & (program < count):
            sum_diagonals(x, inputs, diagonals[n], batches, program, D, DV, DR, 1, TILE)
        program -= count
    if rows is not None:
        program = sum_rows(x, inputs, rows, batches, program, D, DV, DR, TILE)
    if mask is not None:
        is_of_mask = program >= 0
        if is_of_mask:
            sum_pairs(x, inputs, mask, batches, program, D, DV, DR, TILE)
