"""A forward pass of the kernels, made ready from its metadata: what is left are the addresses."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from functools import partial
from typing import NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from relattn.backends.cpu import operator
from relattn.backends.cpu.inputs import LANES, Inputs, rows_of, rows_of_table
from relattn.backends.cpu.layout import CALL, INPUTS, OUTPUT, WORKSPACE, Outputs
from relattn.backends.cpu.operator import FLOATS, has_few_queries, ready
from relattn.equation.problem import Problem

FIELDS = ctypes.c_int64 * (CALL.size // 8)


class Read(NamedTuple):
    """How the kernels read a tensor: the field of its address, and the bytes from there to the first row that is met.

    changed: the rows as the kernels read them, where they do not lie so in memory; else None.
    """

    field: int
    offset: int
    changed: Callable[[Tensor], Tensor] | None


class Prepared(NamedTuple):
    """The call of the kernels without addresses; for each of q, k, v, r and the tables how it is read, None if absent.

    shape: the output's, as the kernel writes it; width: how much of its last axis is the answer. workspace: floats.
    """

    call: bytes
    reads: tuple[Read | None, ...]
    shape: tuple[int, ...]
    width: int
    dtype: torch.dtype
    workspace: int
    kernel: Callable[[int], None]

    def __call__(self, *tensors: Tensor | None) -> Float[Tensor, "B Hq Lq Dv"]:
        """O."""
        call, held = FIELDS.from_buffer_copy(self.call), []
        for tensor, read in zip(tensors, self.reads, strict=True):
            if tensor is None or read is None:
                continue
            field, offset, changed = read
            if changed is not None:
                tensor = changed(tensor)
                held.append(tensor)  # until the kernel has read it
            call[field] = tensor.data_ptr() + offset
        output, workspace = torch.empty(self.shape, **FLOATS), operator.unwritten(self.workspace)
        call[OUTPUT // 8], call[WORKSPACE // 8] = output.data_ptr(), operator.aligned(workspace)
        self.kernel(ctypes.addressof(call))
        if self.width != self.shape[-1]:
            output = output[..., : self.width].contiguous()
        return output if self.dtype == torch.float32 else output.to(self.dtype)


def prepared(problem: Problem, starts: Sequence[int]) -> Prepared | None:
    """The forward pass of a problem that has no mask but limits.

    Keys beyond the limits of all queries are never read. None where the pass also keeps what a backward pass needs, and
    where there is nothing to compute.
    """
    few = has_few_queries(problem)
    if problem.asks_for_gradient() or 0 in (*problem.query.shape, problem.key.shape[2]):
        return None
    inputs, axis = Inputs.of(problem, few=few), problem.axes[0]
    shape = (*problem.query.shape[:3], inputs.value.shape[3])
    outputs = Outputs(torch.empty(shape, **FLOATS), None, None, None)
    call, floats, kernel = ready(problem, inputs, outputs, None, None, few=few)
    lanes, features = (1 if few else LANES), inputs.axes[0]
    reads: list[Read | None] = []
    givens, takens = (*problem[:3], axis.relative_query), (*inputs[:3], features.relative_query)
    for field, given, taken in zip(INPUTS[:4], givens, takens, strict=True):
        if taken is None:
            reads.append(None)
        else:
            reads.append(Read(field, 0, None if taken is given else partial(rows_of, lanes=lanes, dtype=taken.dtype)))
    for field, table, taken, start in zip(INPUTS[4:], axis[2:], features[1:5], starts, strict=True):
        if table is None or taken is None:
            reads.append(None)
        elif taken is table.values:
            reads.append(Read(field, start * taken.stride(1) * taken.element_size(), None))
        else:
            reads.append(Read(field, 0, partial(_rows_met, start, start + table.num_rows, lanes)))
    return Prepared(bytes(call), tuple(reads), shape, problem.value.shape[3], problem.output_dtype, floats, kernel)


def _rows_met(start: int, end: int, lanes: int, values: Tensor) -> Tensor:
    return rows_of_table(values[:, start:end], lanes)
