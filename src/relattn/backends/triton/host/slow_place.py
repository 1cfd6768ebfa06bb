"""One warning where a long call on a GPU cannot have the Triton kernels for a reason of the place."""

from __future__ import annotations

import warnings
from functools import cache

from relattn.backends.triton.host import reasons
from relattn.equation.problem import Problem
from relattn.errors import RelattnWarning
from relattn.interception import constant_in_graphs
from relattn.positions.certainty import statically_true

MANY_PAIRS = 2**20


def warn_of_a_slow_place(chosen: str, problem: Problem) -> None:
    """Warns if version, capability or platform alone keep a call on CUDA from the kernels: once per process and reason.

    chosen: the backend that runs instead. Lengths that a compiled graph leaves open count as long.
    """
    device = problem.query.device
    if statically_true(problem.num_pairs() < MANY_PAIRS):
        return
    why = reasons.of_the_place(device.type, device.index)
    if why and why == reasons.reasons_of(problem):
        _warn(chosen, "; ".join(why))


@constant_in_graphs
def _warn(chosen: str, why: str) -> None:
    if why not in _said():
        _said().add(why)
        warnings.warn(
            f"backend='auto' takes {chosen!r} on this GPU, and 'triton' would take less time, but {why}",
            RelattnWarning,
            stacklevel=2,
        )


@cache
def _said() -> set[str]:
    """The reasons that this process has been told."""
    return set()
