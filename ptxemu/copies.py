"""cp.async: bytes that go from global to shared memory while the threads go on."""

from __future__ import annotations

import numpy as np

from ptxemu.access import accessed
from ptxemu.fault import Fault
from ptxemu.operands import Number, Operand
from ptxemu.program import Step
from ptxemu.shared import Copy
from ptxemu.threads import Threads


def begin(threads: Threads, operands: tuple[Operand, ...]) -> None:
    """A copy of 4, 8 or 16 bytes a thread; a fourth operand says how many are given, zeros follow up to the size."""
    to, of, number, *short = operands
    assert isinstance(number, Number)
    size, shared = number.bits, threads.launch.shared
    rows, lanes = threads.lanes()
    access = accessed(threads, rows, lanes, threads.addresses(to)[rows, lanes], size)
    given = threads.everywhere(threads.read(short[0] if short else number, "u32"))[rows, lanes]
    if (given > size).any():
        raise Fault(f"{given.max()} bytes are given, for a copy of {size}")
    sources = threads.addresses(of)[rows, lanes]
    copy = Copy(threads.programs[rows], access.places, size, sources, given, access.warps, access.text)
    shared.begin(threads.epoch, copy)
    threads.copies[-1].append(copy)


def commit(threads: Threads, operands: tuple[Operand, ...]) -> None:
    """What has begun since the last commit is a group."""
    threads.copies.append([])


def wait(threads: Threads, operands: tuple[Operand, ...]) -> None:
    """Until all groups but the last so many have landed."""
    (number,) = operands
    assert isinstance(number, Number)
    while len(threads.copies) > number.bits + 1:
        for copy in threads.copies.pop(0):
            _land(threads, copy)


def _land(threads: Threads, copy: Copy) -> None:
    data = np.zeros((len(copy.places), copy.size), np.uint8)
    for count in np.unique(copy.given[copy.given > 0]):
        rows = copy.given == count
        if count == copy.size:
            found = threads.launch.memory.load(copy.sources[rows], 4, copy.size // 4).view(np.uint8)
        else:
            found = threads.launch.memory.load(copy.sources[rows], 1, int(count))
        data[rows, :count] = found
    threads.launch.shared.land(threads.epoch, copy, data)


STEPS: dict[str, Step] = {
    "cp.async.ca.shared.global": begin,
    "cp.async.cg.shared.global": begin,
    "cp.async.commit_group": commit,
    "cp.async.wait_group": wait,
}
