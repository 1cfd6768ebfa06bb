"""The PTX of one kernel, read: its parameters, how wide each register is, and its instructions in their order."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple

from ptxemu.fault import Fault
from ptxemu.operands import Operand, Register, operands

if TYPE_CHECKING:
    from ptxemu.threads import Threads

Step = Callable[["Threads", tuple[Operand, ...]], None]
STATEMENT = re.compile(r"(?:@(!?)(%\w+)\s+)?([\w.:]+)\s*(.*)", re.DOTALL)
IGNORED = (".loc", ".file", ".pragma")


class Guard(NamedTuple):
    """The threads that take part: those whose register holds, or where negated, does not."""

    register: Register
    negated: bool


class Instruction(NamedTuple):
    """One statement; step: what it does to threads."""

    step: Step
    operands: tuple[Operand, ...]
    guard: Guard | None
    text: str


class Program(NamedTuple):
    """A kernel; labels: the number of the instruction that follows each. widths: of the registers, in bits, by prefix.

    parameters: name and type, in their order. threads: of one program.
    """

    parameters: dict[str, str]
    threads: int
    widths: dict[str, int]
    code: list[Instruction]
    labels: dict[str, int]


def read(ptx: str, modelled: dict[str, Step]) -> Program:
    """The one kernel of the text; modelled: what each instruction does, by its name and all that follows with dots.

    Raises Fault: for an instruction that is not modelled, wherever it stands.
    """
    head, _, rest = ptx[ptx.index(".visible .entry") :].partition("\n{")
    parameters = re.findall(r"\.param \.(\w+)[^\n,)]*?(\w+_param_\d+)", head)
    threads = re.search(r"\.reqntid (\d+)", head)
    assert threads, "Triton says how many threads a program has"
    widths, code, labels = {}, [], {}
    for line in rest[: rest.index("\n}")].splitlines():
        line = line.partition("//")[0].strip()
        if declared := re.match(r"\.reg \.(\w+)\s+(%\w+)<", line):
            widths[declared[2]] = 1 if declared[1] == "pred" else int(declared[1][1:])
        elif label := re.fullmatch(r"(\$?\w+):", line):
            labels[label[1]] = len(code)
        elif not line.startswith(IGNORED) and line not in ("{", "}"):
            code += [_instruction(part.strip(), modelled) for part in line.split(";") if part.strip()]
    return Program({name: kind for kind, name in parameters}, int(threads[1]), widths, code, labels)


def _instruction(text: str, modelled: dict[str, Step]) -> Instruction:
    found = STATEMENT.fullmatch(text)
    name = found[3].replace(".shared::cta.", ".shared.") if found else ""  # two names of one space
    if not found or name not in modelled:
        raise Fault(f"`{text}` is no instruction that is modelled")
    guard = Guard(Register(found[2]), bool(found[1])) if found[2] else None
    return Instruction(modelled[name], operands(found[4]), guard, text)
