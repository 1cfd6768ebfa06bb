"""What stands behind an instruction's name: registers, numbers, addresses, lists of these, and names."""

from __future__ import annotations

import re
from functools import cache
from typing import NamedTuple

from ptxemu.fault import Fault


class Register(NamedTuple):
    """%r5, or a register that the hardware fills, as %tid.x."""

    name: str


class Number(NamedTuple):
    """Its bits, of an integer in two's complement as many as are asked for; of 0f3F800000 those 32."""

    bits: int


class Symbol(NamedTuple):
    """A label, a parameter, or an array in shared memory."""

    name: str


class Address(NamedTuple):
    """[base + beyond]."""

    base: Register | Number | Symbol
    beyond: int


class Group(NamedTuple):
    """{a, b}: what one instruction reads or writes at once."""

    parts: tuple[Operand, ...]


Operand = Register | Number | Symbol | Address | Group
SINK = "_"


def parts(operand: Operand) -> tuple[Operand, ...]:
    """Of a group; any other stands for itself."""
    return operand.parts if isinstance(operand, Group) else (operand,)


@cache
def operands(text: str) -> tuple[Operand, ...]:
    """All that stand in the text, with commas between."""
    return tuple(operand(part) for part in _split(text))


@cache
def operand(text: str) -> Operand:
    """Raises Fault: when the text is none."""
    text = text.strip()
    if text.startswith("{"):
        return Group(operands(text[1:-1]))
    if text.startswith("["):
        return _address(text[1:-1])
    if re.fullmatch(r"%[\w.]+", text) or text == SINK:
        return Register(text)
    if re.fullmatch(r"0[fF][0-9A-Fa-f]{8}", text):
        return Number(int(text[2:], 16))
    if re.fullmatch(r"-?(0[xX][0-9A-Fa-f]+|\d+)U?", text):
        return Number(int(text.rstrip("U"), 0))
    if re.fullmatch(r"[\w$]+", text):
        return Symbol(text)
    raise Fault(f"{text!r} is no operand that is modelled")


def _address(text: str) -> Address:
    base, _, beyond = text.partition("+")
    found = operand(base)
    assert isinstance(found, Register | Number | Symbol)
    return Address(found, int(beyond) if beyond.strip() else 0)


def _split(text: str) -> list[str]:
    """At the commas outside of brackets."""
    parts, depth = [""], 0
    for letter in text:
        depth += (letter in "{[") - (letter in "}]")
        if letter == "," and depth == 0:
            parts.append("")
        else:
            parts[-1] += letter
    return [part for part in parts if part.strip()]
