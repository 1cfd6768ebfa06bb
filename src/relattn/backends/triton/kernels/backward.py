"""The backward pass: tiles are computed again, and nothing larger than the inputs is kept.

    delta_i = dO_i . O_i - dlse_i        dP_ij = dO_i . (v_j + RV[d])        dS_ij = P_ij * (dP_ij - delta_i)
    dq_i = scale * sum_j dS_ij k_j       dr_i = scale * sum_j dS_ij RK[d]
    dv_j = sum_i P_ij dO_i               dk_j = scale * sum_i dS_ij (q_i + RQ[d])       da_j = sum_i dS_ij
                                                                                        dM_ij = dS_ij

With a cap dS is multiplied by its slope, 1 - tanh^2, in all but the last two.

A program owns a tile of queries, and walks over the keys (queries.py). dq and dr stay on chip. What other programs add
to as well, dk, dv and the gradients of the tables, is added to memory in float32, tile by tile, by atomic instructions.

Of the gradient by a mask that is added a program owns a tile (mask_gradient.py).

Atomic additions are not deterministic. Under `torch.use_deterministic_algorithms(True)` (and where `is_deterministic`
says so) the kernel of the queries computes dq and dr alone, and others sum the rest with one program for each number:
dk and dv (keys.py), and what tables and masks have (ordered_launch.py). Then the bits are the same on every run with
the same sizes of tiles. With dropout P_ij and dP_ij carry its factor, except the P in dS.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor

from relattn.backends.problem_operator import Answers
from relattn.backends.triton.device.axes import OfAxes, gradients_of_r, gradients_of_tables, memory_of_axes, memory_of_r
from relattn.backends.triton.device.backward_inputs import BackwardInputs, Sides, sides_of
from relattn.backends.triton.host.atomic_buffers import NUMBERS, AtomicBuffers, memory_for
from relattn.backends.triton.host.autotune import architecture_of, launch
from relattn.backends.triton.host.call import Call
from relattn.backends.triton.host.kernel_args import Pairs
from relattn.backends.triton.host.pack import pack, rows
from relattn.backends.triton.host.replay import new_memory
from relattn.backends.triton.host.tile_configs import is_always_deterministic
from relattn.backends.triton.kernels.keys import gradients_of_keys
from relattn.backends.triton.kernels.mask_gradient import memory_of_mask
from relattn.backends.triton.kernels.ordered_launch import launch_ordered
from relattn.backends.triton.kernels.queries import queries_kernel
from relattn.backends.triton.kernels.tables import TableSums, sums_of_tables, table_gradient, tables_to_sum
from relattn.equation.problem import TABLES, Differentiable, PerAxis, PerTable


class Written(NamedTuple):
    """What the kernels of a pass wrote. sums: by name, those of tables apart where the pass is deterministic."""

    call: Call
    wanted: Differentiable[bool]
    inputs: BackwardInputs
    sides: Sides
    query: Tensor
    relative: Tensor | None
    sums: dict[str, Tensor]
    table_sums: list[TableSums] | None
    of_axes: OfAxes
    r_gradients: Tensor | None
    mask: Pairs | None


def backward(call: Call, answers: Answers, wanted: Differentiable[bool]) -> Differentiable[Tensor | None]:
    """The gradients by the call's tensors and tables, each in its dtype; None of tables, mask and key bias that are not
    wanted, and of zeros.
    """
    return gradients_of(launched(call, answers, wanted))


def launched(call: Call, answers: Answers, wanted: Differentiable[bool]) -> Written:
    """All kernels of the pass are launched."""
    batch, heads, queries = call.query.shape[:3]
    ordered = is_deterministic(call, wanted)
    mask = memory_of_mask(call) if call.adds_mask and wanted.pair_mask else None
    x, sides = pack(call, wanted), sides_of(call, wanted)
    needs_delta = ordered or mask is not None
    inputs = BackwardInputs(
        grad_output=rows(answers.output_gradient.to(call.query.dtype)),
        maximum=answers.maximum.contiguous(),
        total=answers.total.contiguous(),
        delta=new_memory(answers.total, answers.total.shape) if needs_delta else None,
    )
    query, relative = new_memory(call.query, call.query.shape, None), None
    if call.relative_query is not None:
        relative = new_memory(call.relative_query, call.relative_query.shape, None)
    sums = {} if ordered else memory_for(call, wanted)
    of_axes, r_gradients = memory_of_axes(call, wanted, spare=not ordered), memory_of_r(call)

    def programs(owned: int) -> int:
        return math.ceil(queries / owned) * batch * heads

    output, grad_lse = answers.output.contiguous(), answers.lse_gradient.to(torch.float32).contiguous()
    buffers = AtomicBuffers.of(sums, None if ordered else of_axes.memory)
    arguments = x, inputs, output, grad_lse, sides, query, relative, r_gradients, buffers
    added = [each for each in (*sums.values(), sides.relative_queries, buffers.axes) if each is not None]
    launch(queries_kernel, call, programs, arguments, added=added)
    if ordered:
        sums = gradients_of_keys(call, x, inputs, sides, wanted)
        table_sums = tables_to_sum(call, x, wanted)
        launch_ordered(call, x, inputs, [each.diagonals for each in table_sums], of_axes, mask)
    else:
        table_sums = None
        launch_ordered(call, x, inputs, [], OfAxes(None, {}), mask)
    return Written(call, wanted, inputs, sides, query, relative, sums, table_sums, of_axes, r_gradients, mask)


def gradients_of(written: Written) -> Differentiable[Tensor | None]:
    """The gradients from what the kernels wrote, as `backward` returns them."""
    call, wanted, sums, of_tables, of_r, axes = written.call, written.wanted, {}, {}, {}, []
    if written.table_sums is None:
        for name, memory in written.sums.items():
            sums[name] = memory if name in NUMBERS else memory[..., 1:-1, :]
    else:
        sums = written.sums | sums_of_tables(call, written.table_sums, wanted)
    key, value = sums["key"].to(call.key.dtype).contiguous(), sums["value"].to(call.value.dtype).contiguous()
    if call.axes:
        of_tables = gradients_of_tables(call, wanted, written.of_axes.rows)
        of_r = gradients_of_r(call, written.r_gradients)
    for name in sums.keys() & TABLES:
        of_tables[0, name] = table_gradient(call, written.inputs, written.sides, name, sums[name])
    for n in range(len(wanted.axes)):
        tables = PerTable(*map(of_tables.get, zip((n,) * len(TABLES), TABLES, strict=True)))
        axes.append(PerAxis(of_r.get(n, written.relative if n == 0 else None), tables))
    by_mask = None if written.mask is None else written.mask.at
    return Differentiable(written.query, key, value, by_mask, sums.get("key_bias"), axes)


def is_deterministic(call: Call, wanted: Differentiable[bool]) -> bool:
    """Whether one program sums each number: where determinism is asked for, or `is_always_deterministic`."""
    return torch.are_deterministic_algorithms_enabled() or is_always_deterministic(call, architecture_of(call), wanted)
