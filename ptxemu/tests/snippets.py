"""A few instructions alone: registers go in, and what stands in them afterwards comes out."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import torch
from numpy.typing import ArrayLike

from ptxemu.instructions import STEPS
from ptxemu.machine import finish
from ptxemu.memory import Memory
from ptxemu.program import Step, read
from ptxemu.shared import Shared
from ptxemu.threads import Launch, Threads

THREADS, PROGRAMS, SHARED = 64, 3, 2048
FRAME = """
.visible .entry snippet(
	.param .u64 .ptr .global .align 1 snippet_param_0,
	.param .u32 snippet_param_1
)
.reqntid {threads}
{{
	.reg .pred 	%p<9>;
	.reg .b16 	%rs<9>;
	.reg .b32 	%r<99>;
	.reg .b64 	%rd<9>;
	{text}
	ret;
}}
"""


def execute(
    text: str,
    registers: Mapping[str, ArrayLike],
    tensor: torch.Tensor | None = None,
    argument: int = 0,
    steps: dict[str, Step] = STEPS,
) -> dict[str, np.ndarray]:
    """The registers after the instructions, [PROGRAMS, THREADS], by name; those that go in are such, or one number.

    tensor, argument: what the launch hands over.
    """
    memory = Memory()
    address = 0 if tensor is None else memory.address(tensor)
    program = read(FRAME.format(threads=THREADS, text=text), steps)
    arguments = dict(zip(program.parameters, [address, argument], strict=True))
    launch = Launch(program, memory, arguments, PROGRAMS, Shared(PROGRAMS, SHARED), 0, [])
    threads = Threads(launch, np.arange(PROGRAMS))
    for name, values in registers.items():
        values = np.asarray(values)
        bits = values if values.dtype == bool else values.view(f"u{values.dtype.itemsize}")
        threads.registers[name] = np.broadcast_to(bits, threads.shape).copy()
    launch.ready.append(threads)
    ended = finish(launch)
    order = np.argsort(np.concatenate([one.programs for one in ended]))
    names = set.intersection(*(set(one.registers) for one in ended))
    return {name: np.concatenate([one.registers[name] for one in ended])[order] for name in names}
