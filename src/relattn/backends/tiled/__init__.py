"""The tiled backend: memory linear in the length, forward and backward, in plain PyTorch on any device."""

from __future__ import annotations

from torch import Tensor

from relattn.backends.operators import reasons_of_an_operator
from relattn.backends.problem_operator import Answers, Forward
from relattn.backends.tiled.base_two import LN_2
from relattn.backends.tiled.operator import gradients, part, run
from relattn.equation.philox import seed_of
from relattn.equation.problem import Differentiable, Problem


class TiledBackend:
    """S one tile at a time, O((Lq + Lk) D) memory: FlashAttention's recurrence with the bands of tables.

    The forward pass keeps the output, and of each row the largest score and the sum. The backward pass computes every
    tile's weights again. Scores, softmax and sums are float32 (float64 for float64 inputs). A tile that causality, a
    window, segments or a mask hide completely costs nothing. Beyond a clipped table nothing is multiplied. Rabe and
    Staats 2021; Dao et al. 2022.
    """

    name = "tiled"
    log_base = LN_2

    def reasons(self, problem: Problem) -> list[str]:
        """It runs everything, except under the transforms of torch.func and in an export to ONNX."""
        return reasons_of_an_operator("ONNX has no operator for its tiles")

    def run(self, problem: Problem) -> tuple[Tensor, Tensor | None]:
        """O and, if wanted, lse."""
        return run(problem, seed_of(problem))

    def part(self, problem: Problem) -> Forward:
        """The answers of a part of a call."""
        return part(problem)

    def gradients(
        self, problem: Problem, answers: Answers, wanted: Differentiable[bool]
    ) -> Differentiable[Tensor | None]:
        """A part's share of the gradients of a call, whose answers are given."""
        return gradients(problem, answers, wanted)
