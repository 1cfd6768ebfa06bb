"""Loads and stores, of one number per thread or of up to four that lie side by side."""

from __future__ import annotations

import numpy as np

from ptxemu.kinds import KINDS
from ptxemu.operands import Operand, parts
from ptxemu.program import Step
from ptxemu.shared import Access
from ptxemu.threads import WARP, Threads


def accessed(threads: Threads, rows: np.ndarray, lanes: np.ndarray, addresses: np.ndarray, size: int) -> Access:
    """Bytes of shared memory that some threads of some programs use."""
    shared = threads.launch.shared
    places = shared.places(threads.programs[rows] - threads.launch.first, addresses, size)
    return Access(places, size, lanes // WARP, threads.text)


def load(space: str, kind: str, count: int) -> Step:
    """From where the second operand says to the registers of the first."""
    unit = KINDS[kind].itemsize

    def step(threads: Threads, operands: tuple[Operand, ...]) -> None:
        target, address = operands
        rows, lanes = threads.lanes()
        addresses = threads.addresses(address)[rows, lanes]
        if space == "global":
            bits = threads.launch.memory.load(addresses, unit, count)
        else:
            access = accessed(threads, rows, lanes, addresses, unit * count)
            bits = threads.launch.shared.load(threads.epoch, access, unit)
        for n, register in enumerate(parts(target)):
            values = np.zeros(threads.shape, bits.dtype)
            values[rows, lanes] = bits[:, n]
            threads.write(register, values, kind)

    return step


def store(space: str, kind: str, count: int) -> Step:
    """From the registers of the second operand to where the first says."""
    unit = KINDS[kind].itemsize

    def step(threads: Threads, operands: tuple[Operand, ...]) -> None:
        address, source = operands
        rows, lanes = threads.lanes()
        addresses = threads.addresses(address)[rows, lanes]
        numbers = [threads.everywhere(threads.read(part, kind))[rows, lanes] for part in parts(source)]
        bits = np.stack(numbers, 1)
        if space == "global":
            threads.launch.memory.store(addresses, bits)
        else:
            access = accessed(threads, rows, lanes, addresses, unit * count)
            threads.launch.shared.store(threads.epoch, access, bits)

    return step


STEPS: dict[str, Step] = {
    f"{name}.{space}{vector}.{kind}": make(space, kind, count)
    for name, make in {"ld": load, "st": store}.items()
    for space in ("global", "shared")
    for kind in ("b8", "b16", "b32", "b64")
    for vector, count in {"": 1, ".v2": 2, ".v4": 4}.items()
    if KINDS[kind].itemsize * count <= 16
}
