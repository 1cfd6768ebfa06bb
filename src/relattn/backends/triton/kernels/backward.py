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

import torch
from torch import Tensor

from relattn.backends.problem_operator import Answers
from relattn.backends.triton.device.axes import OfAxes, gradients_of_r, gradients_of_tables, memory_of_axes, memory_of_r
from relattn.backends.triton.device.backward_inputs import BackwardInputs, sides_of
from relattn.backends.triton.host.atomic_buffers import AtomicBuffers, memory_for, without_spare_rows
from relattn.backends.triton.host.autotune import architecture_of, launch
from relattn.backends.triton.host.call import Call
from relattn.backends.triton.host.pack import pack, rows
from relattn.backends.triton.host.tile_configs import is_always_deterministic
from relattn.backends.triton.kernels.keys import gradients_of_keys
from relattn.backends.triton.kernels.mask_gradient import memory_of_mask
from relattn.backends.triton.kernels.ordered_launch import launch_ordered
from relattn.backends.triton.kernels.queries import queries_kernel
from relattn.backends.triton.kernels.tables import sums_of_tables, table_gradient, tables_to_sum
from relattn.equation.problem import TABLES, Differentiable, PerAxis, PerTable


def backward(call: Call, answers: Answers, wanted: Differentiable[bool]) -> Differentiable[Tensor | None]:
    """The gradients by the call's tensors and tables, each in its dtype; None of tables, mask and key bias that are not
    wanted, and of zeros.
    """
    batch, heads, queries = call.query.shape[:3]
    ordered = is_deterministic(call, wanted)
    mask = memory_of_mask(call) if call.adds_mask and wanted.pair_mask else None
    x, sides = pack(call, wanted), sides_of(call, wanted)
    inputs = BackwardInputs(
        grad_output=rows(answers.output_gradient.to(call.query.dtype)),
        maximum=answers.maximum.contiguous(),
        total=answers.total.contiguous(),
        delta=answers.total.new_empty(answers.total.shape) if ordered or mask is not None else None,
    )
    query = call.query.new_empty(call.query.shape)
    relative = None if call.relative_query is None else call.relative_query.new_empty(call.relative_query.shape)
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
        sums |= sums_of_tables(call, table_sums, wanted)
    else:
        launch_ordered(call, x, inputs, [], OfAxes(None, {}), mask)
        sums = {name: without_spare_rows(name, each) for name, each in sums.items()}
    key, value = (sums[name].to(getattr(call, name).dtype).contiguous() for name in ("key", "value"))
    of_tables = gradients_of_tables(call, wanted, of_axes.rows)
    for name in sums.keys() & TABLES:
        of_tables[0, name] = table_gradient(call, inputs, sides, name, sums[name])
    relatives = {0: relative, **gradients_of_r(call, r_gradients)}
    axes = []
    for n in range(len(wanted.axes)):
        axes.append(PerAxis(relatives.get(n), PerTable(*[of_tables.get((n, name)) for name in TABLES])))
    return Differentiable(query, key, value, None if mask is None else mask.at, sums.get("key_bias"), axes)


def is_deterministic(call: Call, wanted: Differentiable[bool]) -> bool:
    """Whether one program sums each number: where determinism is asked for, or `is_always_deterministic`."""
    return torch.are_deterministic_algorithms_enabled() or is_always_deterministic(call, architecture_of(call), wanted)
