"""The tile loops as PyTorch operators, `relattn::tiled` and `relattn::tiled_backward`."""

from __future__ import annotations

from torch import Tensor

from relattn.backends.problem_operator import Answers, Forward, Seed, finished, operator_of
from relattn.backends.tiled.backward import backward
from relattn.backends.tiled.forward import forward
from relattn.backends.tiled.sizes import tile_sizes
from relattn.equation.philox import seed_of
from relattn.equation.problem import Differentiable, Problem


def _forward(problem: Problem, seed: Seed) -> Forward:
    return forward(problem, tile_sizes(problem), seed)


def _backward(
    problem: Problem, seed: Seed, answers: Answers, wanted: Differentiable[bool]
) -> Differentiable[Tensor | None]:
    return backward(problem, tile_sizes(problem), seed, answers, wanted)


run = operator_of("tiled", _forward, _backward)
"""O and, if wanted, lse, from a problem and the seed of its dropout."""


def part(problem: Problem) -> Forward:
    """The answers of a part of a call."""
    return _forward(problem, seed_of(problem))


def gradients(problem: Problem, answers: Answers, wanted: Differentiable[bool]) -> Differentiable[Tensor | None]:
    """A part's share of the gradients of a call, whose answers are given."""
    return finished(problem, wanted, _backward(problem, seed_of(problem), answers, wanted))
