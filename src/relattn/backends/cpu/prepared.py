"""Passes of the kernels, made ready from metadata: what is left are the addresses."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from itertools import starmap
from typing import NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from relattn.backends.cpu import operator
from relattn.backends.cpu.inputs import LANES, Inputs, rows_of, rows_of_table
from relattn.backends.cpu.layout import (
    BY_LSE,
    BY_OUTPUT,
    CALL,
    FOUND,
    INPUTS,
    OUTPUT,
    OUTPUTS,
    WORKSPACE,
    Gradients,
    Outputs,
    addresses,
)
from relattn.backends.cpu.operator import FLOATS, answer_of
from relattn.backends.problem_operator import Answers, Forward
from relattn.equation.problem import Differentiable, Problem

FIELDS = ctypes.c_int64 * (CALL.size // 8)
Straight = Callable[..., Float[Tensor, "B Hq Lq Dv"]]


class Read(NamedTuple):
    """How the kernels read a tensor: the field of its address, and the bytes from there to the first row that is met.

    changed: the rows as the kernels read them, where they do not lie so in memory; else None.
    """

    field: int
    offset: int
    changed: Callable[[Tensor], Tensor] | None


class Launch(NamedTuple):
    """A call of the kernels without addresses; for each of q, k, v, r and the tables how it is read, None if it is not.

    workspace: floats.
    """

    call: bytes
    reads: Sequence[Read | None]
    workspace: int
    kernel: Callable[[int], None]

    def __call__(self, tensors: Sequence[Tensor | None], others: Iterable[tuple[int, int]]) -> None:
        """Runs it. others: fields that only a call knows, and what stands there."""
        call, held = FIELDS.from_buffer_copy(self.call), []
        for tensor, read in zip(tensors, self.reads, strict=True):
            if tensor is None or read is None:
                continue
            field, offset, changed = read
            if changed is not None:
                tensor = changed(tensor)
                held.append(tensor)  # until the kernel has read it
            call[field] = tensor.data_ptr() + offset
        for field, number in others:
            call[field] = number
        workspace = operator.unwritten(self.workspace)
        call[WORKSPACE] = operator.aligned(workspace)
        self.kernel(ctypes.addressof(call))


def prepared(problem: Problem, starts: Sequence[int], recorded: Callable[[Problem], Straight]) -> Straight | None:
    """O of q, k, v, r and the tables, these not yet narrowed, for a problem that has no mask but limits.

    Keys beyond the limits of all queries are never read. None where there is nothing to compute. recorded: of a problem
    whose calls autograd records, O of its tensors.
    """
    if 0 in (*problem.query.shape, problem.key.shape[2]):
        return None
    if problem.asks_for_gradient():
        return _of_tables(problem, starts, recorded(problem))
    few = operator.has_few_queries(problem)
    inputs, dtype, width = Inputs.of(problem, few=few), problem.output_dtype, problem.value.shape[3]
    shape = (*problem.query.shape[:3], inputs.value.shape[3])
    launch = _launch(problem, inputs, Outputs(torch.empty(shape, **FLOATS), None, None, None), None, starts, few=few)
    is_answer = (width, dtype) == (shape[3], torch.float32)

    def attend(*tensors: Tensor | None) -> Float[Tensor, "B Hq Lq Dv"]:
        output = torch.empty(shape, **FLOATS)
        launch(tensors, ((OUTPUT, output.data_ptr()),))
        return output if is_answer else answer_of(output, width, dtype)

    return attend


def prepared_forward(problem: Problem) -> Callable[[Sequence[Tensor]], Forward] | None:
    """The forward pass before a backward pass, of the problem's tensors; None where it is not prepared."""
    if not is_plain(problem):
        return None
    inputs, dtype, width = Inputs.of(problem), problem.output_dtype, problem.value.shape[3]
    shape = (*problem.query.shape[:3], inputs.value.shape[3])
    launch = _launch_of_tensors(problem, inputs, Outputs(*_empty_outputs(shape)), None)

    def attend(tensors: Sequence[Tensor]) -> Forward:
        output, *numbers = outputs = _empty_outputs(shape)
        launch(tensors, zip(OUTPUTS, addresses(outputs), strict=True))
        return Forward(answer_of(output, width, dtype), *numbers)

    return attend


def prepared_backward(
    problem: Problem, wanted: Differentiable[bool]
) -> Callable[[Sequence[Tensor], Answers], list[Tensor]] | None:
    """The wanted gradients, of the problem's tensors and the answers; None where the pass is not prepared."""
    if not is_plain(problem):
        return None
    inputs = Inputs.of(problem)
    buffers, made = operator.buffers_of(inputs, wanted), []
    for one, leaf, buffer, field in zip(wanted.leaves(), problem.leaves(), buffers, FOUND, strict=True):
        if one and (leaf is None or buffer is None):
            return None
        if leaf is not None and buffer is not None:
            made.append((field, buffer.shape, leaf.shape[-1], leaf.dtype))
    output, lse, *numbers = _empty_outputs((*problem.query.shape[:3], inputs.value.shape[3]))
    gradients = Gradients(output, lse, Differentiable.of(buffers))
    launch = _launch_of_tensors(problem, inputs, Outputs(output, None, *numbers), gradients)

    def backward(tensors: Sequence[Tensor], answers: Answers) -> list[Tensor]:
        (by_output, by_lse), outputs = operator.read_answers(answers)
        others = [*zip(OUTPUTS, addresses(outputs), strict=True), (BY_LSE, by_lse.data_ptr())]
        others += zip(BY_OUTPUT, (by_output.data_ptr(), *by_output.stride()[:3]), strict=True)
        found = []
        for field, shape, width, dtype in made:
            gradient = torch.zeros(shape, **FLOATS)
            others.append((field, gradient.data_ptr()))
            found.append((gradient, width, dtype))
        launch(tensors, others)
        return list(starmap(answer_of, found))

    return backward


def is_plain(problem: Problem) -> bool:
    """Whether the passes before and after a gradient can be prepared: nothing but limits hides a pair, no row is left
    out, nothing is dropped, and the sequence, from an int, is the only axis.
    """
    mask = problem.mask
    return (
        len(problem.axes) == 1
        and problem.axes[0].positions.known_origin is not None
        and mask.key_mask is mask.segments is mask.pairs is problem.key_bias is None
        and not any(mask.may_leave_out())
        and problem.dropout_p == 0.0
        and problem.scale != 0.0  # its sign would be in no key
        and 0 not in (*problem.query.shape, problem.key.shape[2])
    )


def _of_tables(problem: Problem, starts: Sequence[int], record: Straight) -> Straight:
    """`record`, of whole tables."""
    parts: list[slice | None] = []
    for table, start in zip(problem.axes[0][2:], starts, strict=True):
        parts.append(None if table is None else slice(start, start + table.num_rows))

    def attend(query: Tensor, key: Tensor, value: Tensor, r: Tensor | None, *tables: Tensor | None) -> Tensor:
        tensors = [query, key, value] if r is None else [query, key, value, r]
        for values, part in zip(tables, parts, strict=True):
            if values is not None and part is not None:
                tensors.append(values if values.shape[1] == part.stop - part.start else values[:, part])
        return record(*tensors)

    return attend


def _launch(
    problem: Problem, inputs: Inputs, outputs: Outputs, gradients: Gradients | None, starts: Sequence[int],
    *, few: bool = False,
) -> Launch:  # fmt: skip
    """The launch of a problem. starts: where its rows begin in the tables that a call gives."""
    call, floats, kernel = operator.ready(problem, inputs, outputs, gradients, None, few=few)
    lanes, axis, taken_axis = (1 if few else LANES), problem.axes[0], inputs.axes[0]
    reads: list[Read | None] = []
    givens, takens = (*problem[:3], axis.relative_query), (*inputs[:3], taken_axis.relative_query)
    for field, given, taken in zip(INPUTS[:4], givens, takens, strict=True):
        if taken is None:
            reads.append(None)
        else:
            reads.append(Read(field, 0, None if taken is given else partial(rows_of, lanes=lanes, dtype=taken.dtype)))
    for field, table, taken, start in zip(INPUTS[4:], axis[2:], taken_axis[1:5], starts, strict=True):
        if table is None or taken is None:
            reads.append(None)
        elif taken is table.values:
            reads.append(Read(field, start * taken.stride(1) * taken.element_size(), None))
        else:
            reads.append(Read(field, 0, partial(_rows_met, start, start + table.num_rows, lanes)))
    return Launch(bytes(call), reads, floats, kernel)


def _launch_of_tensors(problem: Problem, inputs: Inputs, outputs: Outputs, gradients: Gradients | None) -> Launch:
    """The same, for calls that give the tensors that the problem has, and no table beyond its rows."""
    launch, axis = _launch(problem, inputs, outputs, gradients, (0, 0, 0, 0)), problem.axes[0]
    held = (*problem[:3], axis.relative_query, *axis[2:])
    return launch._replace(reads=[read for read, one in zip(launch.reads, held, strict=True) if one is not None])


def _empty_outputs(shape: Sequence[int]) -> list[Tensor]:
    """For O, lse, maximum and total."""
    return [torch.empty(shape if n == 0 else shape[:3], **FLOATS) for n in range(4)]


def _rows_met(start: int, end: int, lanes: int, values: Tensor) -> Tensor:
    return rows_of_table(values[:, start:end], lanes)
