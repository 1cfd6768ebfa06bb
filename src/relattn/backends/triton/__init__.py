"""The triton backend: fused kernels on a CUDA device, memory linear in the length, forward and backward."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from torch import Tensor

from relattn.backends.problem_operator import Answers, Forward
from relattn.backends.triton.host.operator import gradients, part, run
from relattn.backends.triton.host.reasons import reasons_of
from relattn.equation.philox import seed_of
from relattn.equation.problem import Differentiable, Problem


class TritonBackend:
    """S one tile at a time, on chip, O((Lq + Lk) D) memory: FlashAttention's recurrence with the bands of tables.

    Inputs are bfloat16, float16 or float32. Scores, softmax and all sums are float32. Q @ RK^T is a product of two
    tiles on the tensor cores, moved to its diagonals on chip. Gradients are bit-equal on every run where PyTorch is
    told to be deterministic (backward.py). Dao et al. 2022; docs/triton.md has the kernels.
    """

    name = "triton"
    log_base = math.log(2.0)

    def reasons(self, problem: Problem) -> list[str]:
        """It needs CUDA, no float64, and at most 256 features."""
        return reasons_of(problem)

    def run(self, problem: Problem) -> tuple[Tensor, Tensor | None]:
        """O and, if wanted, lse. Dropout's seed lies on the device, and is drawn there."""
        return run(problem, seed_of(problem, problem.query.device))

    def prepared(self, problem: Problem, starts: Sequence[int]) -> Callable[..., Tensor] | None:
        """O of q, k, v, r and tables, with the gradients of all."""
        from relattn.backends.triton.host.prepared import prepared

        return prepared(problem, starts)

    def part(self, problem: Problem) -> Forward:
        """The answers of a part of a call."""
        return part(problem)

    def gradients(
        self, problem: Problem, answers: Answers, wanted: Differentiable[bool]
    ) -> Differentiable[Tensor | None]:
        """A part's share of the gradients of a call, whose answers are given."""
        return gradients(problem, answers, wanted)
