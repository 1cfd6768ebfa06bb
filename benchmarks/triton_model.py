"""A model of how fast the Triton kernels can be: no GPU runs, and no speed is claimed.

For one loop of each kernel, as assembled for a generation of GPUs, it counts per pair of tiles what three units of a
multiprocessor have to do at least, in cycles:

    issue    instructions of all warps / 4 per cycle
    L1       bytes of all warps to and from shared, local and global memory, and of shuffles / 128 per cycle
    tensor   multiply-adds of the products / those that the tensor cores do in a cycle

The largest of them is the kernel's bound. It is put over the tensor cycles of what FlashAttention-2 has to multiply for
the same pairs: 2 products forward, 5 backward. 1 would be a kernel that keeps the tensor cores busy with those alone.
Both branches of an `if` count, as if every tile were at an edge. A walk along clipped tables has loops of its own for
tiles beyond them, and a row of its own here. Each row has the size that suits it; a launch has one for all loops.
Nothing waits for memory, for another unit, or for another program that adds to the same place.

    python -m benchmarks.triton_model
"""

from __future__ import annotations

import re
import subprocess
import tempfile
from pathlib import Path
from typing import Any, NamedTuple

import triton
from triton.backends.compiler import GPUTarget

from benchmarks.triton_compiled import CALLS, FOLDER, kernels
from relattn.backends.triton import candidates
from relattn.backends.triton.call import Call
from relattn.backends.triton.inputs import widths_of
from relattn.support.machine import versions
from tests.triton.compiled import compiled_for, products_in_its_loops

MULTIPLY_ADDS = {80: 1024, 86: 256, 89: 256, 90: 2048}
"""Per cycle and multiprocessor, bfloat16 summed in float32: A100, GeForce RTX 3090 and 4090, H100, from NVIDIA's
whitepapers of their architectures."""
SCHEDULERS, BYTES = 4, 128  # instructions, and bytes of L1, per cycle
FLASH = {"forward": 2, "backward": 5}
"""Products of FlashAttention-2 (Dao 2023)."""
BEYOND, WITHIN = 0, -1
"""The first and the last of the loops of a walk."""
KINDS = {
    "no table": ("no table", WITHIN),
    "relative keys": ("relative keys", WITHIN),
    "clipped relative keys": ("clipped relative keys", WITHIN),
    "beyond clipped relative keys": ("clipped relative keys", BEYOND),
    "a clipped bias": ("a bias", WITHIN),
    "beyond a clipped bias": ("a bias", BEYOND),
    "no table, dropout": ("no table, dropout", WITHIN),
}
"""The calls, and which of their loops."""
PRODUCT = ("HMMA", "HGMMA")
BYTES_OF = {"128": 16, "64": 8, "16": 2, "U16": 2, "S16": 2, "U8": 1, "S8": 1}
"""What one thread moves, by an ending of the instruction's name; 4 without any."""


class Work(NamedTuple):
    """Cycles of a multiprocessor per pair of tiles, by the unit that needs them."""

    issue: float
    l1: float
    tensor: float


def work(kernel: Any, given: tuple, call: Call, capability: int, size: candidates.Sizes, which: int) -> Work:
    """Of one step of the kernel's walk, in one of its loops."""
    tile, warps, stages, groups = size
    constants = {**widths_of(call), **candidates.constants(kernel, size)}
    result = compiled_for(GPUTarget("cuda", capability, 32), kernel, given, constants, warps, stages)
    loops, products = _loops(instructions(result.asm["cubin"])), products_in_its_loops(result.asm["ttir"])
    assert len(loops) == len(products), (kernel.__name__, len(loops), products)
    loop, products = loops[which], products[which]
    return Work(
        issue=len(loop) * warps / groups / SCHEDULERS,
        l1=sum(bytes_of(name) for name, _ in loop) * 32 * warps / groups / BYTES,
        tensor=products * tile * tile * call.query.shape[3] / MULTIPLY_ADDS[capability],
    )


def instructions(cubin: bytes) -> list[tuple[str, str]]:
    """Names and operands; a label is an instruction without operands."""
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(cubin)
        file.flush()
        command = [Path(triton.__file__).parent / "backends/nvidia/bin/nvdisasm", "-c", file.name]
        text = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    found = []
    for line in text.splitlines():
        if label := re.match(r"\s*(\.L_x_\d+):", line):
            found.append((label[1], ""))
        elif instruction := re.match(r"\s*/\*[0-9a-f]+\*/\s+(?:@!?U?P\w+ )?\s*([A-Z0-9_.]+)(.*);", line):
            found.append((instruction[1], instruction[2]))
    return found


def _loops(code: list[tuple[str, str]]) -> list[list[tuple[str, str]]]:
    """The outermost loops that have products, without their labels, in their order."""
    labels = {name: at for at, (name, _) in enumerate(code) if name.startswith(".L")}
    loops = []
    for at, (name, operands) in enumerate(code):
        target = re.search(r"(\.L_x_\d+)", operands) if name.startswith("BRA") else None
        if target and labels.get(target[1], len(code)) <= at:
            start = labels[target[1]]
            if any(name.startswith(PRODUCT) for name, _ in code[start : at + 1]):
                loops.append((start, at))
    outer = [one for one in loops if not any(one != o and o[0] <= one[0] and o[1] >= one[1] for o in loops)]
    return [[one for one in code[start : end + 1] if not one[0].startswith(".L")] for start, end in sorted(outer)]


def bytes_of(name: str) -> int:
    """What one thread moves to or from memory, or to another thread: 32 of them a cycle (CUDA C++ Programming Guide,
    throughput of arithmetic instructions).
    """
    kind, *endings = name.split(".")
    if kind == "SHFL":
        return 4
    if kind == "LDGDEPBAR":  # counts copies, and moves nothing
        return 0
    if kind in ("LDSM", "STSM"):
        return 4 * int(endings[-1]) if endings[-1].isdigit() else 4
    if kind.startswith(("LDS", "STS", "LDL", "STL", "LDG", "STG", "RED", "ATOM")):
        return next((size for ending, size in BYTES_OF.items() if ending in endings), 4)
    return 0


def rows() -> list[list[str]]:
    """One per generation and kind: the bounds, and the ratios of a forward pass and of a training step."""
    found = []
    for capability in MULTIPLY_ADDS:
        for kind, (name, which) in KINDS.items():
            call = CALLS[name]()
            total, flash, cells = 0.0, 0.0, []
            for direction, products in FLASH.items():
                kernel, given, _ = kernels(call)[direction]
                best = None
                for size in candidates.candidates(kernel.__name__, call, capability):
                    one, pairs = work(kernel, given, call, capability, size, which), size.tile**2
                    per_pair, reference = max(one) / pairs, products * 64 / MULTIPLY_ADDS[capability]
                    if best is None or per_pair < best[0]:
                        best = per_pair, reference, size, one
                assert best is not None
                per_pair, reference, size, one = best
                total, flash = total + per_pair, flash + reference
                unit = max(Work._fields, key=lambda unit, one=one: getattr(one, unit))
                figures = " / ".join(f"{cycles:.0f}" for cycles in one)
                several = f", {size.groups} tiles" if size.groups > 1 else ""
                cells += [", ".join(map(str, size[:3])) + several, figures, unit, f"{per_pair / reference:.1f}"]
            found.append([f"sm_{capability}", kind, *cells, f"{total / flash:.1f}"])
            print(*found[-1], flush=True)
    return found


def main() -> None:
    """Write benchmarks/results/triton/model.md."""
    lines = [
        "# A model of the Triton kernels' speed",
        "",
        "No GPU ran, and no speed is claimed. Per pair of tiles, at a width of 64 in bfloat16: the cycles that a",
        "multiprocessor needs at least to issue the instructions / for L1 (memory of all kinds, and shuffles) / on the",
        "tensor cores; which of them is the bound; and the bound over the tensor cycles of FlashAttention-2's products",
        "for the same pairs. The last column is a training step. Two sizes are timed: tile, warps, stages, and how",
        "many tiles of queries a program owns, where they are several. The one with the lower bound is shown.",
        "`benchmarks/triton_model.py` says what the model leaves out.",
        "",
        "```sh",
        "python -m benchmarks.triton_model",
        "```",
        "",
        ", ".join(f"{name} {version}" for name, version in versions("torch", "triton").items()) + ".",
        "",
        "| GPU | tables | forward | cycles | bound | ratio | backward | cycles | bound | ratio | step |",
        "|---|---|---|---:|---|---:|---|---:|---|---:|---:|",
        *(f"| {' | '.join(row)} |" for row in rows()),
    ]
    (FOLDER / "model.md").write_text("\n".join(lines) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
