"""What would be launched on a GPU, compiled by Triton and run here; ptxas, which comes after, is left out."""

from __future__ import annotations

import struct
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any

import pytest
import torch
from triton.backends.compiler import GPUTarget

from ptxemu.instructions import STEPS
from ptxemu.machine import run
from ptxemu.memory import Memory
from ptxemu.program import read
from relattn.backends.triton.host.call import Call
from relattn.backends.triton.host.pack import widths_of
from tests.triton.calls import launching
from tests.triton.compiled import compiled_for, given_at_run_time

SCRATCH = [0, 0]
"""Two pointers that Triton adds to every kernel's parameters, to memory that ours do not ask for."""
BY_DEFAULT = 4, 3  # warps and stages of a launch that names none


def launch(
    kernel: Any,
    arguments: tuple,
    constants: dict[str, int],
    programs: int,
    warps: int,
    stages: int,
    edit: Callable[[str], str] = str,
    precision: str = "ieee",
    capability: int = 80,
) -> None:
    """kernel[(programs,)](*arguments, **constants), on tensors of the CPU; edit: what to make of the PTX before.
    capability: of the GPU that the kernel is compiled for.

    Raises Fault: where the kernel does what no GPU owes a meaning.
    """
    target = GPUTarget("cuda", capability, 32)
    found = compiled_for(target, kernel, arguments, constants, warps, stages, precision)
    memory = Memory()
    given = [_bits(argument, memory) for argument in given_at_run_time(arguments)]
    program = read(edit(found.asm["ptx"]), STEPS)
    run(program, memory, given + SCRATCH, programs, found.metadata.shared)


class Launched:
    """In place of a kernel that is launched by name: kernel[grid](...)."""

    def __init__(self, kernel: Any) -> None:
        self.kernel, self.__name__ = kernel, kernel.__name__

    def __getitem__(self, grid: tuple[int]) -> Callable[..., None]:
        return lambda *arguments, **constants: launch(self.kernel, arguments, constants, *grid, *BY_DEFAULT)


def emulate(given: tuple[int, ...], monkeypatch: pytest.MonkeyPatch, capability: int = 80) -> None:
    """From now on every kernel of the triton backend runs here, those along tiles by this `TileConfig` and as compiled
    for GPUs of this capability.
    """
    from relattn.backends.triton.host import tile_configs
    from relattn.backends.triton.kernels import decoding

    size = tile_configs.TileConfig(*given)

    def in_tiles(
        kernel: Any, call: Call, programs: Callable[[int], int], arguments: tuple, *,
        more: Mapping[str, int] = MappingProxyType({}), **given: Any,
    ) -> None:  # fmt: skip
        owned = size.tile * (size.groups if kernel.__name__ in tile_configs.ALONG_KEYS else 1)
        constants = {**widths_of(call), **more, **tile_configs.constants(kernel, size)}
        launch(
            kernel, arguments, constants, programs(owned), size.warps, size.stages, precision=call.precision,
            capability=capability,
        )  # fmt: skip

    for module in launching():
        monkeypatch.setattr(module, "launch", in_tiles)
    for name in ("split_keys_kernel", "merge_kernel"):
        monkeypatch.setattr(decoding, name, Launched(getattr(decoding, name)))


def _bits(argument: Any, memory: Memory) -> int:
    if isinstance(argument, torch.Tensor):
        return memory.address(argument)
    return struct.unpack("<I", struct.pack("<f", argument))[0] if isinstance(argument, float) else argument
