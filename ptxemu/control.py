"""Branches, barriers, a fence, and the end."""

from __future__ import annotations

import numpy as np

from ptxemu.fault import Fault
from ptxemu.operands import Number, Operand, Symbol
from ptxemu.program import Step
from ptxemu.threads import Threads


def branch(threads: Threads, operands: tuple[Operand, ...]) -> None:
    """The threads that take part go on at the label, the others at what follows.

    Raises Fault: where threads of one program part.
    """
    (label,) = operands
    assert isinstance(label, Symbol)
    there = threads.launch.program.labels[label.name]
    if threads.taking is None:
        threads.at = there
        return
    going = np.all(threads.taking, 1)
    if (threads.taking.any(1) != going).any():
        raise Fault("threads of one program take a branch two ways")
    threads.go(going, there)


def barrier(threads: Threads, operands: tuple[Operand, ...]) -> None:
    """All threads of a program have come here: what they wrote to shared memory is there for all.

    Raises Fault: where warps met before.
    """
    if operands != (Number(0),):
        raise Fault("only barrier 0, of all threads, is modelled")
    threads.all_take_part()
    threads.settle()


def warp_barrier(threads: Threads, operands: tuple[Operand, ...]) -> None:
    """All threads of each warp have come here. A program of one warp has no other barrier.

    Nothing else: threads of one warp go together here, and what they read of each other is not checked.
    """
    if operands != (Number(-1),):
        raise Fault("only a barrier of whole warps is modelled")
    threads.all_take_part()


def fence(threads: Threads, operands: tuple[Operand, ...]) -> None:
    """For what reads shared memory beside the threads, from Hopper on. None of it is modelled."""


def end(threads: Threads, operands: tuple[Operand, ...]) -> None:
    """Raises Fault: where warps met since the last barrier."""
    threads.all_take_part()
    threads.settle()
    threads.ended = True


STEPS: dict[str, Step] = {
    "bra": branch, "bra.uni": branch, "bar.sync": barrier, "bar.warp.sync": warp_barrier, "ret": end,
    "fence.proxy.async.shared::cta": fence,
}  # fmt: skip
