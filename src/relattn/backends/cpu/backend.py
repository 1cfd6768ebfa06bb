"""The native backend: compiled kernels for CPUs, memory linear in the length, forward and backward."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import torch
from torch import Tensor

from relattn.backends.cpu.inputs import MOST_AXES
from relattn.backends.cpu.library import Kernels, kernels
from relattn.backends.cpu.operator import backward, forward, forward_alone, gradients, part
from relattn.backends.cpu.prepared import prepared, prepared_backward, prepared_forward
from relattn.backends.cpu.steps import Stepping, stepping
from relattn.backends.dense import DenseBackend
from relattn.backends.operators import reasons_of_an_operator
from relattn.backends.problem_operator import Answers, Forward, Prepare, operator_of
from relattn.equation.philox import seed_of
from relattn.equation.problem import Differentiable, Problem
from relattn.interception import constant_in_graphs
from relattn.positions.certainty import statically_true

MOST_ROWS_IF_EXPLICIT = 2**31 - 1
"""The kernels hold the row of a pair of explicit positions as an int32 (kernels/lookup.h)."""

OPERATORS = operator_of(
    "native", forward, backward, DenseBackend().run, forward_alone, Prepare(prepared_forward, prepared_backward)
)
"""`relattn::native` and `relattn::native_backward`."""


class NativeBackend:
    """S one block at a time in the processor's caches, O((Lq + Lk) D) memory: FlashAttention's recurrence in C++.

    Scores, softmax and sums are float32. bfloat16 and float16 are widened on the way in. Where the processor multiplies
    pairs of bfloat16, products take bfloat16 as it is, and weights are rounded to it. Scores start from the tables'
    products, read along the diagonals, so the skew costs nothing. Answers and gradients have the same bits for every
    number of threads.
    """

    name = "native"
    log_base = 1.0

    def reasons(self, problem: Problem) -> Iterator[str]:
        """It needs a CPU, and float32 or narrower."""
        if missing := _missing():
            yield missing
        if problem.query.device.type != "cpu":
            yield f"its kernels run on a CPU, and the query lies on {problem.query.device.type}"
        if problem.output_dtype == torch.float64:
            yield "it computes in float32, and the query is float64"
        if len(problem.axes) > MOST_AXES:
            yield f"its kernels read up to {MOST_AXES} axes, the sequence among them, and there are {len(problem.axes)}"
        first, *others = problem.axes
        for axis in others if first.positions.origin is not None else problem.axes:
            for name, table in axis.tables().items():  # pairs look up their rows one by one
                if statically_true((rows := table.num_rows) > MOST_ROWS_IF_EXPLICIT):
                    yield (
                        "its kernels count a table's rows in 32 bits where positions are explicit, and "
                        f"{name} has {rows}"
                    )
        yield from reasons_of_an_operator("ONNX has no operator for its kernels")

    def run(self, problem: Problem) -> tuple[Tensor, Tensor | None]:
        """O and, if wanted, lse."""
        return OPERATORS.run(problem, seed_of(problem))

    def prepared(self, problem: Problem, starts: Sequence[int]) -> Callable[..., Tensor] | None:
        """The call without its addresses."""
        return prepared(problem, starts, OPERATORS.recorded)

    def stepping(self, problem: Problem) -> Stepping:
        """The forward pass without what a step changes."""
        return stepping(problem)

    def part(self, problem: Problem) -> Forward:
        """The answers of a part of a call."""
        return part(problem)

    def gradients(
        self, problem: Problem, answers: Answers, wanted: Differentiable[bool]
    ) -> Differentiable[Tensor | None]:
        """A part's share of the gradients of a call, whose answers are given."""
        return gradients(problem, answers, wanted)


@constant_in_graphs
def _missing() -> str:
    """Why there are no kernels; empty where there are."""
    available = kernels()
    return "" if isinstance(available, Kernels) else available
