"""A forward pass of the kernels for few queries, made ready for any number of keys: a cache's, which grows."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from relattn.backends.cpu import operator
from relattn.backends.cpu.inputs import Inputs, lie_side_by_side, rows_of, rows_of_table
from relattn.backends.cpu.layout import INPUTS, KEYS, ORIGIN, OUTPUT, WORKSPACE, Outputs
from relattn.backends.cpu.library import Kernels
from relattn.backends.cpu.operator import FLOATS, loaded_kernels, ready
from relattn.backends.cpu.prepared import FIELDS
from relattn.equation.problem import Problem
from relattn.equation.tables import OffsetTable
from relattn.positions.positions import Positions


class Stepping(NamedTuple):
    """The call of the kernels, in which a step writes what it has: addresses, strides, rows, keys and the first offset.

    changes: for each of q, k, v and r what makes them as the kernels read them; None where they lie so in memory.
    copies: for each table whether its rows do not lie so. shape: the output's.
    """

    call: bytes
    changes: tuple[Callable[[Tensor], Tensor] | None, ...]
    copies: tuple[bool, ...]
    shape: tuple[int, ...]
    dtype: torch.dtype
    native: Kernels

    def __call__(
        self, positions: Positions, query: Tensor, key: Tensor, value: Tensor, r: Tensor | None,
        *tables: OffsetTable | None,
    ) -> Float[Tensor, "B Hq Lq Dv"]:  # fmt: skip
        """O."""
        call, held = FIELDS.from_buffer_copy(self.call), []
        for at, tensor, change in zip(INPUTS[:4], (query, key, value, r), self.changes, strict=True):
            if tensor is None:
                continue
            if change is not None:
                tensor = change(tensor)
                held.append(tensor)  # until the kernel has read it
            call[at : at + 4] = tensor.data_ptr(), *tensor.stride()[:3]
        for at, table, copies in zip(INPUTS[4:], tables, self.copies, strict=True):
            if table is None:
                continue
            first, rows = table.first, table.values
            if copies:
                least, most = positions.visible
                assert isinstance(least, int) and isinstance(most, int)
                table = table.narrowed(least, max(most - least + 1, 1))
                first, rows = table.first, rows_of_table(table.values, 1)
                held.append(rows)
            heads, count = rows.shape[:2]
            call[at], call[at + 3 : at + 6] = rows.data_ptr(), (0 if heads == 1 else rows.stride(0), count, first)
        call[KEYS], call[ORIGIN] = positions.key_length, positions.known_origin
        at = ctypes.addressof(call)
        output, workspace = torch.empty(self.shape, **FLOATS), operator.unwritten(self.native.few_workspace(at))
        call[OUTPUT], call[WORKSPACE] = output.data_ptr(), operator.aligned(workspace)
        self.native.few(at)
        return output if self.dtype == torch.float32 else output.to(self.dtype)


def stepping(problem: Problem) -> Stepping:
    """The forward pass of a problem of few queries, which has no mask but limits and asks for no gradient."""
    inputs, axis = Inputs.of(problem, few=True), problem.axes[0]
    features, shape = inputs.axes[0], (*problem.query.shape[:3], inputs.value.shape[3])
    outputs = Outputs(torch.empty(shape, **FLOATS), None, None, None)
    call, _, _ = ready(problem, inputs, outputs, None, None, few=True)
    givens, takens = (*problem[:3], axis.relative_query), (*inputs[:3], features.relative_query)
    changes: list[Callable[[Tensor], Tensor] | None] = []
    for given, taken in zip(givens, takens, strict=True):
        changes.append(
            partial(rows_of, lanes=1, dtype=taken.dtype) if taken is not given and taken is not None else None
        )
    copies = []
    for table in axis[2:]:
        rows = None if table is None else table.values
        copies.append(rows is not None and not (rows_of(rows, 1) is rows and lie_side_by_side(rows)))
    return Stepping(bytes(call), tuple(changes), tuple(copies), shape, problem.output_dtype, loaded_kernels())
