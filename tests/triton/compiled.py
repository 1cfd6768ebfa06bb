"""A kernel compiled for a GPU that is not there: its text, its registers, spills and shared memory, and its atomics."""

import re
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import torch
import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

HOPPER = GPUTarget("cuda", 90, 32)
TYPES = {
    torch.float32: "*fp32",
    torch.bfloat16: "*bf16",
    torch.float16: "*fp16",
    torch.uint8: "*u8",
    torch.int32: "*i32",
    torch.int64: "*i64",
}


class Cost(NamedTuple):
    """Of one program: registers and spilled bytes a thread, bytes of shared memory, number of atomic instructions."""

    registers: int
    spilled: int
    shared: int
    atomics: int


def compiled(kernel, arguments: tuple, constants: dict[str, Any], warps: int, stages: int) -> Cost:
    """Compile the kernel as a launch with these arguments on an H100 or H200 would."""
    result = compiled_for(HOPPER, kernel, arguments, constants, warps, stages)
    atomics = re.findall(r"\b(?:atom|red)\.", result.asm["ptx"])
    return Cost(*_registers(result.asm["ptx"]), result.metadata.shared, len(atomics))


def compiled_for(
    target: GPUTarget, kernel, arguments: tuple, constants: dict[str, Any], warps: int, stages: int
) -> Any:
    """What Triton makes of the kernel for this target, as a launch with these arguments there would."""
    names = [name for name in kernel.arg_names if name not in constants]
    constexprs: dict[tuple, Any] = {(kernel.arg_names.index(name),): value for name, value in constants.items()}
    attributes: dict[tuple, list] = {}
    signature = {}
    for name, argument in zip(names, arguments, strict=True):
        signature[name] = _type(argument, (kernel.arg_names.index(name),), constexprs, attributes)
    signature |= {name: "constexpr" for name in constants}
    source = ASTSource(kernel, {name: signature[name] for name in kernel.arg_names}, constexprs, attributes)
    return triton.compile(source, target=target, options={"num_warps": warps, "num_stages": stages})


def given_at_run_time(arguments: tuple) -> Iterator[Any]:
    """Those of the arguments that the compiled kernel takes, in their order: the others are constants in it."""
    for argument in arguments:
        if isinstance(argument, tuple):
            yield from given_at_run_time(argument)
        elif not _is_constant(argument):
            yield argument


def _type(argument: Any, path: tuple, constexprs: dict[tuple, Any], attributes: dict[tuple, list]) -> Any:
    if isinstance(argument, tuple):
        types = [_type(part, (*path, n), constexprs, attributes) for n, part in enumerate(argument)]
        return type(argument)(*types)
    if _is_constant(argument):
        constexprs[path] = argument
        return "constexpr"
    address = argument.data_ptr() if isinstance(argument, torch.Tensor) else argument
    if isinstance(address, int) and address % 16 == 0:
        attributes[path] = [["tt.divisibility", 16]]
    if isinstance(argument, torch.Tensor):
        return TYPES[argument.dtype]
    if isinstance(argument, float):
        return "fp32"
    return "i32" if -(2**31) <= argument < 2**31 else "i64"


def _is_constant(argument: Any) -> bool:
    return argument is None or (type(argument) is int and argument == 1)


def _registers(ptx: str) -> tuple[int, int]:
    ptxas = Path(triton.__file__).parent / "backends/nvidia/bin/ptxas"
    with tempfile.TemporaryDirectory() as folder:
        source = Path(folder, "kernel.ptx")
        source.write_text(ptx)
        command = [ptxas, "-v", "--gpu-name=sm_90a", source, "-o", Path(folder, "kernel.cubin")]
        said = subprocess.run(command, capture_output=True, text=True, check=True).stderr
    registers, stores = re.search(r"Used (\d+) registers", said), re.search(r"(\d+) bytes spill stores", said)
    assert registers and stores, said
    return int(registers[1]), int(stores[1])
