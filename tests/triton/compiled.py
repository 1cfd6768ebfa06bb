"""A kernel compiled for a GPU that is not there: its text, and what the text and the assembler tell of its cost."""

import re
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any, NamedTuple

import torch
import triton
from triton.backends.compiler import GPUTarget
from triton.backends.nvidia.compiler import get_ptxas
from triton.compiler import ASTSource

from relattn.backends.triton.host.autotune import REGISTERS

TYPES = {
    torch.float32: "*fp32",
    torch.bfloat16: "*bf16",
    torch.float16: "*fp16",
    torch.uint8: "*u8",
    torch.int32: "*i32",
    torch.int64: "*i64",
}


class Cost(NamedTuple):
    """Of one program: registers and spilled bytes per thread, bytes of shared memory, the number of atomic
    instructions; products of two tiles for each step of its walk, and those anywhere that two warps compute the same
    part of.
    """

    registers: int
    spilled: int
    shared: int
    atomics: int
    products: int
    repeated: int


def compiled(
    kernel, arguments: tuple, constants: dict[str, Any], warps: int, stages: int, capability: int = 90,
    precision: str = "ieee",
) -> Cost:  # fmt: skip
    """Compile the kernel as a launch with these arguments on a GPU of this capability (90: H100, H200) would."""
    target = GPUTarget("cuda", capability, 32)
    result = compiled_for(target, kernel, arguments, constants, warps, stages, precision)
    ptx, layouts = result.asm["ptx"], result.asm["ttgir"]
    atomics = re.findall(r"\b(?:atom|red)\.", ptx)
    products, repeated = max(products_in_its_loops(result.asm["ttir"]), default=0), _repeated(layouts)
    return Cost(*_registers(ptx, capability), result.metadata.shared, len(atomics), products, repeated)


def compiled_for(
    target: GPUTarget, kernel, arguments: tuple, constants: dict[str, Any], warps: int, stages: int,
    precision: str = "ieee", assembled: bool = False,
) -> Any:  # fmt: skip
    """What Triton makes of the kernel for this target, as a launch with these arguments there would: up to its PTX, or
    assembled, too.
    """
    names = [name for name in kernel.arg_names if name not in constants]
    constexprs: dict[tuple, Any] = {(kernel.arg_names.index(name),): value for name, value in constants.items()}
    attributes: dict[tuple, list] = {}
    signature = {}
    for name, argument in zip(names, arguments, strict=True):
        signature[name] = _type(argument, (kernel.arg_names.index(name),), constexprs, attributes)
    signature |= {name: "constexpr" for name in constants}
    source = ASTSource(kernel, {name: signature[name] for name in kernel.arg_names}, constexprs, attributes)
    options = {"num_warps": warps, "num_stages": stages, "maxnreg": REGISTERS}
    options["default_dot_input_precision"] = precision
    with nullcontext() if assembled else _without_ptxas():
        return triton.compile(source, target=target, options=options)


@contextmanager
def _without_ptxas() -> Iterator[None]:
    """Triton's compiler ends with the PTX."""

    def left_out(*given: Any) -> tuple[str, str] | None:
        if not given:  # asks for what tells such results from others in the cache
            return "without ptxas", "without ptxas"
        given[1]["cubin"] = lambda ptx, metadata: b""
        return None

    before = triton.knobs.runtime.add_stages_inspection_hook
    triton.knobs.runtime.add_stages_inspection_hook = left_out
    try:
        yield
    finally:
        triton.knobs.runtime.add_stages_inspection_hook = before


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
        return type(argument)(*types) if hasattr(argument, "_fields") else tuple(types)
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


def _registers(ptx: str, capability: int) -> tuple[int, int]:
    name = f"sm_{capability}{'a' if capability >= 90 else ''}"
    with tempfile.TemporaryDirectory() as folder:
        source = Path(folder, "kernel.ptx")
        source.write_text(ptx)
        command = [get_ptxas(capability).path, "-v", f"--gpu-name={name}", source]
        ran = subprocess.run([*command, "-o", Path(folder, "kernel.cubin")], capture_output=True, text=True, check=True)
    registers, stores = (
        re.search(r"Used (\d+) registers", ran.stderr),
        re.search(r"(\d+) bytes spill stores", ran.stderr),
    )
    assert registers and stores, ran.stderr
    return int(registers[1]), int(stores[1])


def products_in_its_loops(text: str) -> list[int]:
    """Of each loop that has products of its own, in the order of what Triton makes of the source first."""
    return counted_in_its_loops(text, r"tt\.dot ")


def counted_in_its_loops(text: str, pattern: str) -> list[int]:
    """How many lines match, in each loop that has products of its own."""
    counts: list[list[int]] = []
    around: list[tuple[int, list[int]]] = []
    for line in text.splitlines():
        indent = len(line) - len(line.lstrip())
        while around and indent <= around[-1][0] and line.strip():
            around.pop()
        if "scf.for" in line:
            counts.append([0, 0])
            around.append((indent, counts[-1]))
        elif around:
            around[-1][1][0] += "tt.dot " in line
            around[-1][1][1] += bool(re.search(pattern, line))
    return [count for products, count in counts if products]


def _repeated(layouts: str) -> int:
    """Products whose result has fewer rows or columns than its layout lays over the warps; see tensor cores' layouts in
    Triton's GPU dialect.
    """
    sides = r"\[([\d, ]+)\]"
    told = re.findall(rf"(#\w+) = #ttg\.nvidia_mma<\{{[^}}]*warpsPerCTA = {sides}[^}}]*instrShape = {sides}", layouts)
    covered = {
        name: [int(w) * int(s) for w, s in zip(*(side.split(",") for side in both), strict=False)]
        for name, *both in told
    }
    results = re.findall(r"(?:tt\.dot|warp_group_dot) .*-> tensor<((?:\d+x)+)f32, (#\w+)>", layouts)
    return sum(
        any(of_warps > int(size) for of_warps, size in zip(covered[layout], shape.split("x"), strict=False))
        for shape, layout in results
        if layout in covered
    )
