"""Additions to global memory that no other thread comes between."""

from __future__ import annotations

import numpy as np

from tests.triton.ptx.operands import Operand
from tests.triton.ptx.threads import Threads


def add(threads: Threads, operands: tuple[Operand, ...]) -> None:
    """The third operand is added where the second says, one thread after the other: a GPU may take any order.

    The first operand would hold what stood there before, which depends on that order: here it holds NaN.
    """
    old, address, source = operands
    rows, lanes = threads.lanes()
    addresses = threads.addresses(address)[rows, lanes]
    threads.launch.memory.add(addresses, threads.everywhere(threads.read(source, "f32"))[rows, lanes])
    threads.write(old, np.full(threads.shape, np.nan, np.float32), "f32")


STEPS = {"atom.global.gpu.relaxed.add.f32": add}
