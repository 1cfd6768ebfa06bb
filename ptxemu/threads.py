"""Threads: some programs of a launch that have taken every branch together, all their registers in step.

An instruction is one operation of NumPy on [programs, threads] numbers. Where programs part at a branch, each side goes
on by itself; the threads of one program must not part.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from ptxemu.fault import Fault
from ptxemu.kinds import KINDS, unsigned
from ptxemu.operands import SINK, Address, Number, Operand, Register, Symbol
from ptxemu.program import Guard, Program
from ptxemu.shared import Copy, Epoch, Shared

if TYPE_CHECKING:
    from ptxemu.memory import Memory

WARP = 32
SPECIAL = ("%tid.x", "%ctaid.x", "%nctaid.x")  # registers that the hardware fills
UNKNOWN = 0xDB  # each byte of a register that some threads have written and others not, or that nobody has


class Launch(NamedTuple):
    """What all threads share. arguments: the bits of each parameter. programs: how many there are.

    shared: of the programs that run now, of which `first` is the first. ready: threads that wait for their turn.
    """

    program: Program
    memory: Memory
    arguments: dict[str, int]
    programs: int
    shared: Shared
    first: int
    ready: list[Threads]


class Threads:
    """Registers [programs, threads], and what each program has under way.

    at: the number of the next instruction. taking: the threads that take part in the present one; None: all.
    copies: groups of those under way, the last one still open. epoch: what they did to shared memory since the last
    barrier.
    """

    def __init__(self, launch: Launch, programs: np.ndarray) -> None:
        self.launch, self.programs = launch, programs
        self.at, self.ended = 0, False
        self.taking: np.ndarray | None = None
        self.registers: dict[str, np.ndarray] = {}
        self.copies: list[list[Copy]] = [[]]
        self.epoch = Epoch([], [])

    @property
    def text(self) -> str:
        """Of the present instruction."""
        return self.launch.program.code[self.at - 1].text

    @property
    def shape(self) -> tuple[int, int]:
        """Programs, and threads of each."""
        return len(self.programs), self.launch.program.threads

    def read(self, operand: Operand, kind: str, unwritten: bool = False) -> np.ndarray:
        """The operand's numbers, [programs, threads] or one for all; of a wider register its low bits.

        unwritten: whether a register may hold nothing; each of its bytes is then UNKNOWN.

        Raises Fault: where a register holds nothing, or less than the kind.
        """
        dtype = KINDS[kind]
        if isinstance(operand, Number):
            if kind == "pred":
                return np.array(operand.bits != 0)
            return np.array(operand.bits & (256**dtype.itemsize - 1), unsigned(dtype.itemsize)).view(dtype)
        if isinstance(operand, Symbol):  # of shared memory, which begins with the one array that there is
            return np.zeros((), dtype)
        assert isinstance(operand, Register), operand
        bits = self._special(operand.name) if operand.name in SPECIAL else self.registers.get(operand.name)
        if bits is None and unwritten:
            bits = np.full(dtype.itemsize, UNKNOWN, np.uint8).view(unsigned(dtype.itemsize))[0]
        if bits is None:
            raise Fault(f"{operand.name} is read and was never written")
        if bits.dtype.itemsize > dtype.itemsize:
            bits = bits.astype(unsigned(dtype.itemsize))
        if bits.dtype.itemsize < dtype.itemsize:
            raise Fault(f"{operand.name} has {8 * bits.dtype.itemsize} bits and is read as {kind}")
        return bits.view(dtype)

    def write(self, operand: Operand, values: np.ndarray, kind: str) -> None:
        """To the threads that take part; in a wider register signed numbers keep their sign, others get zeros before.

        Raises Fault: where the register is too narrow.
        """
        assert isinstance(operand, Register), operand
        if operand.name == SINK:
            return
        bits, dtype = self._bits_of(operand.name), KINDS[kind]
        values = self.everywhere(values).astype(dtype, copy=False)
        if bits.itemsize < dtype.itemsize:
            raise Fault(f"{operand.name} has {8 * bits.itemsize} bits and is written as {kind}")
        if bits.itemsize > dtype.itemsize:
            values = values.view(dtype if dtype.kind == "i" else unsigned(dtype.itemsize)).astype(bits)
        values = values.view(bits)
        if self.taking is not None:
            before = self.registers.get(operand.name)
            if before is None:
                before = np.full(self.shape, UNKNOWN, np.uint8).repeat(bits.itemsize, 1).view(bits)
            values = np.where(self.taking, values, before)
        self.registers[operand.name] = values

    def addresses(self, address: Operand) -> np.ndarray:
        """[programs, threads] in 64 bits."""
        assert isinstance(address, Address), address
        size = self._bits_of(address.base.name).itemsize if isinstance(address.base, Register) else 4
        base = self.read(address.base, f"u{8 * size}").astype(np.int64)
        return self.everywhere(base + address.beyond)

    def everywhere(self, values: np.ndarray) -> np.ndarray:
        """[programs, threads], where there may be one number for all."""
        return values if values.shape == self.shape else np.broadcast_to(values, self.shape)

    def taken(self, guard: Guard | None) -> np.ndarray | None:
        """The threads for which a guard holds, [programs, threads]; None: all of them."""
        if guard is None:
            return None
        holds = self.read(guard.register, "pred") ^ guard.negated
        return None if holds.all() else holds

    def all_take_part(self) -> None:
        """Raises Fault: in an instruction that a whole warp runs, where some of its threads do not."""
        if self.taking is not None:
            raise Fault("some threads do not take part in what their whole warp has to do")

    def go(self, where: np.ndarray, there: int) -> None:
        """The chosen programs [programs] go on at another instruction: now, or if not all do, in their turn."""
        if where.all():
            self.at = there
        elif where.any():
            going = self._part(where)
            going.at = there
            self.launch.ready.append(going)
            staying = self._part(~where)
            self.programs, self.registers, self.copies = staying.programs, staying.registers, staying.copies

    def settle(self) -> None:
        """A barrier, or the end: what happens from now on is after all that happened before."""
        self.launch.shared.settle(self.epoch)
        self.epoch = Epoch([], [])

    def lanes(self) -> tuple[np.ndarray, np.ndarray]:
        """The rows of programs, and the threads, that take part."""
        taking = np.ones(self.shape, bool) if self.taking is None else self.taking
        rows, lanes = np.nonzero(taking)
        return rows, lanes

    def _part(self, chosen: np.ndarray) -> Threads:
        part = Threads(self.launch, self.programs[chosen])
        part.at = self.at
        part.registers = {name: bits[chosen] for name, bits in self.registers.items()}
        part.copies = [[copy.of(part.programs) for copy in group] for group in self.copies]
        part.epoch = self.epoch.copied()  # with those of the programs that left, whose bytes are others
        return part

    def _bits_of(self, register: str) -> np.dtype:
        width = self.launch.program.widths[register.rstrip("0123456789")]
        return np.dtype(bool) if width == 1 else unsigned(width // 8)

    def _special(self, name: str) -> np.ndarray:
        found = {
            "%tid.x": np.arange(self.launch.program.threads),
            "%ctaid.x": self.programs[:, None],
            "%nctaid.x": np.array(self.launch.programs),
        }[name]
        return np.ascontiguousarray(np.broadcast_to(found, self.shape), np.uint32)
