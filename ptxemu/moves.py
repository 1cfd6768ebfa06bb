"""Numbers from here to there: copied, joined of parts, taken apart; and the arguments of the launch."""

from __future__ import annotations

from functools import reduce

import numpy as np

from ptxemu.elementwise import elementwise
from ptxemu.operands import Address, Group, Operand, Symbol
from ptxemu.program import Step
from ptxemu.threads import Threads


def move(kind: str) -> Step:
    """{a, b} is one number, of which a are the low bits.

    The compiler may join a number with a register that nothing wrote, and take only the number out again: in its place
    stand bits that no sum survives.
    """
    alone = elementwise(lambda x: x, kind, kind)
    bits = int(kind[1:]) if kind != "pred" else 0

    def step(threads: Threads, operands: tuple[Operand, ...]) -> None:
        target, source = operands
        if isinstance(source, Group):
            width = bits // len(source.parts)
            parts = [threads.read(part, f"b{width}", unwritten=True).astype(f"u{bits // 8}") for part in source.parts]
            joined = reduce(np.bitwise_or, [part << (width * n) for n, part in enumerate(parts)])
            threads.write(target, joined, kind)
        elif isinstance(target, Group):
            width = bits // len(target.parts)
            whole = threads.read(source, kind)
            for n, part in enumerate(target.parts):
                threads.write(part, (whole >> (width * n)).astype(f"u{width // 8}"), f"b{width}")
        else:
            alone(threads, operands)

    return step


def load_argument(kind: str) -> Step:
    """Of the launch."""

    def step(threads: Threads, operands: tuple[Operand, ...]) -> None:
        target, address = operands
        assert isinstance(address, Address) and isinstance(address.base, Symbol) and not address.beyond, address
        given = threads.launch.arguments[address.base.name]
        bits = int(kind[1:])
        threads.write(
            target, np.array(given & (2**bits - 1), f"u{bits // 8}").view(f"{_letter(kind)}{bits // 8}"), kind
        )

    return step


def _letter(kind: str) -> str:
    return "i" if kind[0] == "s" else "u"


STEPS: dict[str, Step] = {
    f"mov.{kind}": move(kind) for kind in ("b16", "b32", "b64", "u16", "u32", "u64", "pred")
}  # fmt: skip
STEPS |= {f"ld.param.{kind}": load_argument(kind) for kind in ("b32", "b64", "s32")}
