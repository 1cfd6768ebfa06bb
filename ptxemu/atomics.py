"""Additions to global memory that no other thread comes between."""

from __future__ import annotations

import numpy as np

from ptxemu.operands import Operand, parts
from ptxemu.program import Step
from ptxemu.threads import Threads


def add(threads: Threads, operands: tuple[Operand, ...]) -> None:
    """The last operand's numbers are added side by side from where the one before it says, one thread after the other:
    a GPU may take any order.

    A first of three operands would hold what stood there before, which depends on that order: here it holds NaN.
    """

    *old, address, source = operands
    rows, lanes = threads.lanes()
    addresses = threads.addresses(address)[rows, lanes]
    numbers = [threads.everywhere(threads.read(part, "f32"))[rows, lanes] for part in parts(source)]
    threads.launch.memory.add(addresses, np.stack(numbers, 1))
    for register in (register for one in old for register in parts(one)):
        threads.write(register, np.full(threads.shape, np.nan, np.float32), "f32")


STEPS: dict[str, Step] = {
    f"{name}.global.gpu.relaxed.add{vector}.f32": add for name in ("atom", "red") for vector in ("", ".v2", ".v4")
}
