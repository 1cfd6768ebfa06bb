"""A launch of a kernel on no GPU, some of its programs at a time."""

from __future__ import annotations

import numpy as np

from ptxemu.fault import Fault
from ptxemu.memory import Memory
from ptxemu.program import Program
from ptxemu.shared import Shared
from ptxemu.threads import Launch, Threads

TOGETHER = 8
"""Programs in step: an operation of NumPy on so many costs little more than on one."""


def run(program: Program, memory: Memory, arguments: list[int], programs: int, shared_bytes: int) -> None:
    """All programs of a launch; arguments: the bits of each parameter, in their order.

    Raises Fault: with the instruction and the program, where one does what no GPU owes a meaning.
    """
    named = dict(zip(program.parameters, arguments, strict=True))
    for first in range(0, programs, TOGETHER):
        count = min(TOGETHER, programs - first)
        launch = Launch(program, memory, named, programs, Shared(count, shared_bytes), first, [])
        launch.ready.append(Threads(launch, np.arange(first, first + count)))
        finish(launch)


def finish(launch: Launch) -> list[Threads]:
    """Those that are ready, and those that part from them, at their end."""
    ended = []
    with np.errstate(all="ignore"):
        while launch.ready:
            ended.append(launch.ready.pop())
            _go_on(ended[-1])
    return ended


def _go_on(threads: Threads) -> None:
    """Until the end of these programs, but for those that part from them."""
    code = threads.launch.program.code
    while not threads.ended:
        instruction = code[threads.at]
        threads.at += 1
        try:
            threads.taking = threads.taken(instruction.guard)
            if threads.taking is None or threads.taking.any():
                instruction.step(threads, instruction.operands)
        except Fault as fault:
            programs = ", ".join(map(str, threads.programs))
            raise Fault(f"{fault}: `{instruction.text}`, in programs {programs}") from None
