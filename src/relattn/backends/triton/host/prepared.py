"""Calls made ready from their metadata: where a pass of the same alignments has run before, its launches are replayed.

A pass that has not is run as any other, and noted. The passes of a call are told apart by what else decides launches:
where addresses lie between multiples of 16, PyTorch's settings of determinism and precision, and for a backward pass
which gradients are wanted and how its tensors lie in memory.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from typing import Any, NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from relattn.backends.operators import refusal
from relattn.backends.problem_arguments import flat
from relattn.backends.problem_operator import Answers
from relattn.backends.triton.host.call import Call
from relattn.backends.triton.host.lowering import call_of, highest_is_asked_for
from relattn.backends.triton.host.padding import without_padding
from relattn.backends.triton.host.replay import Replay, new_memory, noting
from relattn.backends.triton.kernels.backward import gradients_of, launched
from relattn.backends.triton.kernels.forward import forward
from relattn.checks.autocast import without_autocast
from relattn.equation.problem import TABLES, Axis, Differentiable, Problem
from relattn.equation.tables import OffsetTable
from relattn.equation.visibility import within_reach
from relattn.interception import is_batched, is_intercepted

MOST = 32
"""The passes that a call keeps."""
ALIGNED = 16
"""Triton compiles for addresses that are multiples of so many bytes, and for others."""


class Rows(NamedTuple):
    """The rows of a table that visible pairs meet: `count` from `start` on, for the offsets from `first` on.

    copied: the dtype of the copy that the kernels read; None where they read the table.
    """

    start: int
    first: Any
    count: int
    beyond: Any
    copied: torch.dtype | None

    def narrowed(self, values: Tensor) -> Tensor:
        """They, from the values of the table or from themselves."""
        return values if values.shape[1] == self.count else values[:, self.start : self.start + self.count]

    def of(self, values: Tensor) -> Tensor:
        """They, or their copy."""
        values = self.narrowed(values)
        return values if self.copied is None else values.to(self.copied).contiguous()


class Prepared(NamedTuple):
    """O of q, k, v, r and the tables of a problem's metadata.

    problem: without tensors. rows: those of each table, None for what is none. records: whether autograd records the
    call. passes: forward and backward, by what decides their launches.
    """

    problem: Problem
    rows: tuple[Rows | None, ...]
    records: bool
    reads_precision: bool
    passes: dict[Hashable, Replay]

    def __call__(self, *tensors: Tensor | None) -> Float[Tensor, "B Hq Lq Dv"]:
        """O."""
        if self.records:
            given = list(tensors)
            for n, rows in enumerate(self.rows):
                if rows is not None and (values := given[n]) is not None:
                    given[n] = rows.narrowed(values)
            return Recorded.apply(self, *given)  # pyright: ignore[reportReturnType]
        return self.run(_output_of, tensors)

    def run(
        self, run: Callable[..., Any], tensors: Sequence[Tensor | None], *others: Tensor, wanted: Hashable = None
    ) -> Any:
        """What `run` returns for the call of these tensors and the others; replayed where it has run before."""
        given, addresses = [], []
        decides: list[Any] = [wanted, torch.are_deterministic_algorithms_enabled()]
        if self.reads_precision:
            decides.append(highest_is_asked_for())
        for tensor, rows in zip((*tensors, *others), (*self.rows, *[None] * len(others)), strict=True):
            if tensor is None:
                continue
            if rows is not None and (wanted or rows.copied is not None):
                tensor = rows.of(tensor)
            address = tensor.data_ptr()
            given.append(tensor)
            addresses.append(address)
            decides.append(address % ALIGNED)
            if wanted:  # hooks of autograd may have saved it in another layout
                decides += tensor.stride(), tensor.dtype
        known = self.passes.get(key := tuple(decides))
        if known is not None:
            return known.run(given, addresses)
        apart = [tensor.detach() for tensor in given]  # no two are one object
        left = iter(apart)
        with torch.cuda.device_of(given[0]), noting():
            problem = self.problem_of([None if tensor is None else next(left) for tensor in tensors])
            call = call_of(without_padding(problem), None)
            answers = run(call, *(others := tuple(left)))
            tables = [getattr(call, name) for name in TABLES]
            read = [call.query, call.key, call.value, call.relative_query, *(t and t.values for t in tables), *others]
            noted = Replay.of_notes(apart, [tensor for tensor in read if tensor is not None], answers)
        if noted is not None:
            self.passes[key] = noted
            for first in list(self.passes)[:-MOST]:
                self.passes.pop(first, None)
        return answers

    def problem_of(self, tensors: Sequence[Tensor | None]) -> Problem:
        """The problem of these tensors."""
        query, key, value, r, *tables = tensors
        found = []
        for rows, values in zip(self.rows[4:], tables, strict=True):
            if rows is None or values is None:
                found.append(None)
            else:
                found.append(OffsetTable(rows.of(values), rows.first, rows.beyond))
        axes = (Axis(self.problem.mask.positions, r, *found),)
        return self.problem.replace(query=query, key=key, value=value, axes=axes)


class Recorded(torch.autograd.Function):
    """A call that autograd records.

    It saves what the operator saves, in its order, because checkpointing may compute one again by the other.
    """

    @staticmethod
    def forward(ctx: Any, prepared: Prepared, *tensors: Tensor | None) -> Tensor:  # noqa: D102
        output, _, maximum, total = prepared.run(forward, tensors)
        ctx.prepared = prepared
        ctx.save_for_backward(output, maximum, total, *tensors)
        return output

    @staticmethod
    def backward(ctx: Any, by_output: Tensor) -> tuple[Tensor | None, ...]:  # noqa: D102  # pyright: ignore[reportIncompatibleMethodOverride]
        output, maximum, total, *tensors = ctx.saved_tensors
        prepared, wanted = ctx.prepared, ctx.needs_input_grad[1:]
        if is_batched(by_output):
            raise refusal("triton", "it takes no batched gradients (is_grads_batched)")
        answers = output, maximum, total, by_output if by_output.stride(3) == 1 else by_output.contiguous()
        found: list[Tensor | None] = [None] * len(tensors)
        if torch.is_grad_enabled() or is_intercepted((by_output, *tensors)):
            asked, zeros = [n for n, one in enumerate(wanted) if one], torch.zeros_like(total)
            places = [n for n, tensor in enumerate(tensors) if tensor is not None]
            arguments = flat(prepared.problem_of(tensors), None)
            gradients = torch.ops.relattn.triton_backward(*answers, zeros, [places.index(n) for n in asked], *arguments)
            for n, gradient in zip(asked, gradients, strict=True):
                found[n] = gradient
        else:

            def run(call: Call, *answers: Tensor) -> Any:
                tree = Differentiable.of([*wanted[:3], False, False, *wanted[3:]])
                return launched(call, Answers(*answers, new_memory(total, total.shape, zeros=True)), tree)  # pyright: ignore[reportCallIssue]

            with without_autocast(output):
                query, key, value, _, _, (of_axis,) = gradients_of(prepared.run(run, tensors, *answers, wanted=wanted))
            for n, gradient in enumerate((query, key, value, of_axis.relative_query, *of_axis.tables)):
                found[n] = gradient if wanted[n] else None
        for n, rows in enumerate(prepared.rows):
            if rows is not None and (gradient := found[n]) is not None:
                found[n] = gradient.to(tensors[n].dtype)
        return None, *found


def _output_of(call: Call) -> Tensor:
    return forward(call).output


def prepared(problem: Problem, starts: Sequence[int]) -> Prepared | None:
    """The calls of a problem that has no mask but limits.

    None where kernels read copies of q, k, v or r, or zeros in place of their rows, and where there is nothing to do.
    """
    reached, axis, records = within_reach(problem), problem.axes[0], problem.asks_for_gradient()
    dtype, r = problem.output_dtype, axis.relative_query
    for tensor in (*problem[:3], r):
        if tensor is not None and (tensor.dtype != dtype or tensor.stride(3) != 1):
            return None
    if reached.num_pairs() == 0 or any(reached.mask.may_leave_out()) or (records and reached is not problem):
        return None
    if r is not None and axis.relative_keys is None:
        return None
    rows: list[Rows | None] = [None] * 4
    for table, start in zip(axis[2:], starts, strict=True):
        if table is None:
            rows.append(None)
        else:
            values, read = table.values, dtype if table.values.dtype == dtype else torch.float32
            copied = None if read == values.dtype and values.stride(-1) == 1 else read
            rows.append(Rows(start, table.first, table.num_rows, table.beyond, copied))
    bare = problem.replace(query=None, key=None, value=None, axes=(), for_backward=records)
    reads_precision = dtype == torch.float32 and axis[2:5] == (None, None, None)
    return Prepared(bare, tuple(rows), records, reads_precision, {})
