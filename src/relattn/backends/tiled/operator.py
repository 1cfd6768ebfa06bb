"""The tile loops as PyTorch operators, `relattn::tiled` and `relattn::tiled_backward`."""

from __future__ import annotations

from torch import Tensor

from relattn.backends.philox import seed_of
from relattn.backends.problem_operator import Answers, Forward, of_whole, operator_of
from relattn.backends.tiled.backward import backward
from relattn.backends.tiled.base_two import LOG2_E
from relattn.backends.tiled.forward import forward
from relattn.backends.tiled.sizes import tile_sizes
from relattn.score.problem import Problem


def _forward(problem: Problem, seed: Tensor | None) -> Forward:
    return forward(problem, tile_sizes(problem), seed)


def _backward(problem: Problem, seed: Tensor | None, answers: Answers, wanted: set[str]) -> dict[str, Tensor]:
    return backward(problem, tile_sizes(problem), seed, answers, wanted)


run = operator_of("tiled", _forward, _backward)
"""O and lse, from a problem and the seed of its dropout."""


def gradients(
    problem: Problem, output: Tensor, lse: Tensor, output_gradient: Tensor, lse_gradient: Tensor, wanted: list[str]
) -> dict[str, Tensor]:
    """A part's share of the gradients of a call; output and lse are those of the whole call."""
    answers = of_whole(problem, output, lse, output_gradient, lse_gradient)
    return _backward(problem, seed_of(problem), answers._replace(maximum=answers.maximum * LOG2_E), set(wanted))
