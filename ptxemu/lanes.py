"""What a thread gets from others of its warp: one register of another thread, and the largest or smallest of all."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from ptxemu.fault import Fault
from ptxemu.operands import Number, Operand
from ptxemu.program import Step
from ptxemu.threads import WARP, Threads

EVERY_LANE, WHOLE_WARP = -1, WARP - 1


def shuffle(source: Callable[[np.ndarray, np.ndarray], np.ndarray]) -> Step:
    """Thread t of every warp reads that of thread source(t, b).

    Raises Fault: for another mask than that of all threads, and for parts of a warp.
    """

    def step(threads: Threads, operands: tuple[Operand, ...]) -> None:
        target, register, by, clamp, mask = operands
        threads.all_take_part()
        if (clamp, mask) != (Number(WHOLE_WARP), Number(EVERY_LANE)):
            raise Fault("shuffles within a part of a warp are not modelled")
        bits = threads.everywhere(threads.read(register, "b32"))
        lanes = np.arange(threads.shape[1])
        moved = threads.everywhere(threads.read(by, "u32")).astype(np.int64)
        found = lanes // WARP * WARP + source(lanes % WARP, moved)
        threads.write(target, np.take_along_axis(bits, found, 1), "b32")

    return step


def of_a_warp(ufunc: np.ufunc) -> Step:
    """Every thread of a warp gets the largest, or the smallest, of its 32 numbers.

    Raises Fault: where a register names other threads than all.
    """

    def step(threads: Threads, operands: tuple[Operand, ...]) -> None:
        target, register, mask = operands
        threads.all_take_part()
        if (threads.read(mask, "s32") != EVERY_LANE).any():
            raise Fault("a largest or smallest number of a part of a warp is not modelled")
        of_warps = threads.everywhere(threads.read(register, "s32")).reshape(len(threads.programs), -1, WARP)
        threads.write(target, ufunc.reduce(of_warps, axis=2).repeat(WARP, 1), "s32")

    return step


STEPS: dict[str, Step] = {
    "redux.sync.max.s32": of_a_warp(np.maximum),
    "redux.sync.min.s32": of_a_warp(np.minimum),
    "shfl.sync.bfly.b32": shuffle(lambda lane, by: (lane ^ by) % WARP),
    "shfl.sync.idx.b32": shuffle(lambda lane, by: by % WARP),
}
