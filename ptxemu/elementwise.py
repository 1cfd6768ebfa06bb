"""Instructions that give each thread a number of its own registers."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from ptxemu.operands import Operand
from ptxemu.program import Step
from ptxemu.threads import Threads


def elementwise(function: Callable[..., np.ndarray], result: str, *sources: str) -> Step:
    """The first operand becomes, as a `result`, the function of the others, which are read as these kinds."""

    def step(threads: Threads, operands: tuple[Operand, ...]) -> None:
        target, *given = operands
        numbers = [threads.read(operand, kind) for operand, kind in zip(given, sources, strict=True)]
        threads.write(target, function(*numbers), result)

    return step
