"""Shared memory: that of every program that runs, and where two of its warps meet with no barrier between.

Between two barriers the warps of a program may come in any order. So a byte that one of them writes is no other's to
read or write before the next barrier. What does not change a byte harms nobody: warps that hold the same part of a
tensor all write it.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from ptxemu.fault import Fault
from ptxemu.kinds import unsigned

WIDEST = 16  # bytes that one thread reads or writes at once
UNWRITTEN = 0xFF  # each byte that nobody has written yet: NaN in every format


class Access(NamedTuple):
    """Bytes that an instruction reads or writes: so many from each of the places on, by these warps."""

    places: np.ndarray
    size: int
    warps: np.ndarray
    text: str

    def units(self, size: int) -> tuple[np.ndarray, np.ndarray]:
        """The numbers of the units of so many bytes, and the warp of each."""
        count = self.size // size
        return (self.places[:, None] // size + np.arange(count)).ravel(), self.warps.repeat(count)


class Copy(NamedTuple):
    """A cp.async under way, a row for each thread: `given` bytes from a global address, zeros up to `size`."""

    programs: np.ndarray
    places: np.ndarray
    size: int
    sources: np.ndarray
    given: np.ndarray
    warps: np.ndarray
    text: str

    def of(self, programs: np.ndarray) -> Copy:
        """The rows of some programs."""
        ours = np.isin(self.programs, programs)
        rows = [part[ours] for part in (self.programs, self.places, self.sources, self.given, self.warps)]
        return Copy(rows[0], rows[1], self.size, *rows[2:], text=self.text)


class Epoch:
    """What happened to shared memory since the last barrier."""

    def __init__(self, reads: list[Access], writes: list[Access]) -> None:
        self.reads, self.writes = reads, writes

    def copied(self) -> Epoch:
        return Epoch(list(self.reads), list(self.writes))


class Shared:
    """So many bytes for each of some programs; a place is a byte's number among all of these."""

    def __init__(self, programs: int, size: int) -> None:
        self.size = -(-size // WIDEST) * WIDEST
        total = programs * self.size
        self.bytes = np.full(total, UNWRITTEN, np.uint8)
        self.awaited = np.zeros(total, np.uint8)  # 0xFF where a copy has not landed
        self._writer = np.full(total, -1, np.int32)  # scratch, by unit: the number of a write, and its warp
        self._owner = np.zeros(total, np.int32)  # scratch, by place

    def places(self, rows: np.ndarray, addresses: np.ndarray, size: int) -> np.ndarray:
        """Of so many bytes at addresses of the programs in these rows.

        Raises Fault: where they lie outside of the program's memory, or on no multiple of their size.
        """
        outside = (addresses < 0) | (addresses + size > self.size)
        if outside.any():
            raise Fault(f"shared address {addresses[outside][0]} lies outside of {self.size} bytes")
        if (addresses % size).any():
            raise Fault(f"shared address {addresses[addresses % size != 0][0]} is no multiple of {size}")
        return rows * self.size + addresses

    def load(self, epoch: Epoch, access: Access, unit: int) -> np.ndarray:
        """The bits, in units of so many bytes: [places, units].

        Raises Fault: where a copy has not landed.
        """
        index = self._index(access, unit)
        epoch.reads.append(access)
        return self.bytes.view(unsigned(unit))[index]

    def store(self, epoch: Epoch, access: Access, bits: np.ndarray) -> None:
        """Bits [places, units].

        Raises Fault: where a copy has not landed, and where two warps write different bits to one place.
        """
        index = self._index(access, bits.itemsize)
        memory = self.bytes.view(bits.dtype)
        changed = (memory[index] != bits).any(1)
        memory[index] = bits  # of threads that write to one place the last one, of which PTX says only: one of them
        order = np.arange(len(access.places))
        self._owner[access.places] = order
        owner = self._owner[access.places]
        if ((access.warps[owner] != access.warps) & (memory[index] != bits).any(1)).any():
            raise Fault("two warps write different bits to one place at once")
        kept = changed & (owner == order)
        if kept.any():
            epoch.writes.append(access._replace(places=access.places[kept], warps=access.warps[kept]))

    def begin(self, epoch: Epoch, copy: Copy) -> None:
        """From now on the bytes are nobody's until the copy lands."""
        access = Access(copy.places, copy.size, copy.warps, copy.text)
        index = self._index(access, 1)
        self.bytes[index], self.awaited[index] = UNWRITTEN, 0xFF
        epoch.writes.append(access)

    def land(self, epoch: Epoch, copy: Copy, data: np.ndarray) -> None:
        """Bytes [rows, size]: from now on the warps that copied them may read them, and after a barrier all."""
        index = copy.places[:, None] + np.arange(copy.size)
        self.bytes[index], self.awaited[index] = data, 0
        epoch.writes.append(Access(copy.places, copy.size, copy.warps, copy.text))

    def settle(self, epoch: Epoch) -> None:
        """Raises Fault: where two warps met."""
        if not epoch.writes:
            return
        unit = min(access.size for access in (*epoch.reads, *epoch.writes))
        writers: list[Access] = []
        for access in epoch.writes:
            units, warps = access.units(unit)
            self._compare(access, units, warps, unit, writers)
            self._writer[units] = len(writers) * 256 + warps
            writers.append(access)
        for access in epoch.reads:
            self._compare(access, *access.units(unit), unit, writers)
        for access in writers:
            self._writer[access.units(unit)[0]] = -1

    def _compare(self, access: Access, units: np.ndarray, warps: np.ndarray, unit: int, writers: list[Access]) -> None:
        found = self._writer[units]
        met = (found >= 0) & (found % 256 != warps)
        if met.any():
            first = np.argmax(met)
            other, warp = divmod(int(found[first]), 256)
            raise Fault(
                f"warp {warp}, `{writers[other].text}`, and warp {warps[first]}, `{access.text}`, meet at byte "
                f"{units[first] * unit % self.size} of shared memory with no barrier between"
            )

    def _index(self, access: Access, unit: int) -> np.ndarray:
        index = access.places[:, None] // unit + np.arange(access.size // unit)
        if self.awaited.view(unsigned(unit))[index].any():
            raise Fault("a byte is used that cp.async has not brought yet")
        return index
