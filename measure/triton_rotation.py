"""The rotation of a tile on chip in three ways, by the instructions that they compile to. Nothing is timed.

    joined[i, c] -> pairs[i, j] = joined[i, (j - i - 1) mod T]

A tile [T, T] of sums in float32 lies in the registers of four warps, as a product of tensor cores leaves it. There are
three ways to rotate it. `tl.gather` along one of two axes takes three steps in Triton, made here one by one: each row
is laid over the threads of one warp, by way of shared memory; shuffles turn it; the tile is laid out as before, by way
of shared memory. `tl.gather` of a tensor with one axis goes through shared memory once: so do the kernels (skew.py).
Gluon's gather reads from a tile that was written to shared memory, with rows padded so that no banks collide.

    python -m measure.triton_rotation
"""

# pyright: reportArgumentType=false, reportAssignmentType=false
# A layout of Gluon is a constexpr, which its stubs do not say.
from __future__ import annotations

import re
import subprocess
import tempfile
from collections import Counter
from pathlib import Path

import triton
from triton.backends.compiler import GPUTarget
from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon._runtime import GluonASTSource

from measure.triton_compiled import FOLDER
from relattn.backends.triton.device.skew import shared_place
from relattn.cli.machine import versions

CAPABILITY, TILES, WARPS = 80, (32, 64), 4
"""86 and 89 have the same layout of sums."""
WAYS = ("none", "two axes", "one axis", "Gluon")
SCHEDULERS, BYTES = 4, 128  # instructions, and bytes of L1, per cycle of a multiprocessor
BYTES_OF = {"128": 16, "64": 8, "16": 2, "U16": 2, "S16": 2, "U8": 1, "S8": 1}
"""What one thread moves, by an ending of the instruction's name; 4 without any."""


@gluon.jit
def rotated_kernel(source, target, WAY: gl.constexpr, T: gl.constexpr, layout: gl.constexpr, shared: gl.constexpr):
    """One tile, rotated along its rows."""
    i = gl.arange(0, T, gl.SliceLayout(1, layout))[:, None]
    j = gl.arange(0, T, gl.SliceLayout(0, layout))[None, :]
    tile = gl.load(source + (i * T + j))
    if WAY == "two axes":
        rows: gl.constexpr = gl.BlockedLayout([1, 1], [1, 32], [4, 1], [1, 0])
        row = gl.arange(0, T, gl.SliceLayout(1, rows))[:, None]
        column = gl.arange(0, T, gl.SliceLayout(0, rows))[None, :]
        turned = gl.gather(gl.convert_layout(tile, rows), (column - row + T - 1) & (T - 1), 1)
        tile = gl.convert_layout(turned, layout)
    elif WAY == "one axis":
        parts = gl.permute(gl.reshape(tile, (T // 8, 8, T // 8, 4, 2)), (0, 2, 4, 1, 3))
        places = gl.reshape(shared_place(i, (j - i + T - 1) & (T - 1), T), (T * T,))
        turned = gl.reshape(gl.gather(gl.reshape(parts, (T * T,)), places, 0), (T, T))
        tile = gl.convert_layout(turned, layout, assert_trivial=True)
    elif WAY == "Gluon":
        tile = gl.allocate_shared_memory(gl.float32, [T, T], shared, tile).gather((j - i + T - 1) & (T - 1), 1)
    gl.store(target + (i * T + j), tile)


def counted(way: str, tile: int) -> Counter[str]:
    """The instructions of a program, by name."""
    warps = [2, 2] if tile == 32 else [4, 1]  # as the compiler lays four of them over a product
    layout = gl.NVMMADistributedLayout([2, 0], warps, [16, 8])
    shared = gl.PaddedSharedLayout.with_identity_for([[tile, 8]], [tile, tile], [1, 0])
    constants = {"WAY": way, "T": tile, "layout": layout, "shared": shared}
    names = rotated_kernel.arg_names
    signature = {name: "constexpr" if name in constants else "*fp32" for name in names}
    given = {(names.index(name),): value for name, value in constants.items()}
    aligned = {(n,): [["tt.divisibility", 16]] for n in range(2)}
    source = GluonASTSource(rotated_kernel, signature, given, aligned)
    result = triton.compile(source, target=GPUTarget("cuda", CAPABILITY, 32), options={"num_warps": WARPS})
    return Counter(instructions(result.asm["cubin"]))


def instructions(cubin: bytes) -> list[str]:
    """The names of a compiled kernel's instructions."""
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(cubin)
        file.flush()
        command = [Path(triton.__file__).parent / "backends/nvidia/bin/nvdisasm", "-c", file.name]
        return parsed(subprocess.run(command, capture_output=True, text=True, check=True).stdout)


def parsed(text: str) -> list[str]:
    """The names of the instructions that nvdisasm writes."""
    return re.findall(r"^\s*/\*[0-9a-f]+\*/\s+(?:@!?U?P\w+ )?\s*([A-Z0-9_.x]+).*;", text, re.MULTILINE)


def bytes_of(name: str) -> int:
    """What one thread moves to or from shared memory, or to another thread: 32 of them a cycle (CUDA C++ Programming
    Guide, throughput of arithmetic instructions).
    """
    kind, *endings = name.split(".")
    if kind in ("LDSM", "STSM"):
        return 4 * int(endings[-1]) if endings[-1].isdigit() else 4
    return next((size for ending, size in BYTES_OF.items() if ending in endings), 4)


def cost(way: str, tile: int) -> tuple[float, ...]:
    """Shuffles, stores and loads of shared memory per warp; cycles to issue all instructions, and of L1."""
    added = counted(way, tile)
    added.subtract(counted("none", tile))
    moved = {kind: sum(n for name, n in added.items() if name.startswith(kind)) for kind in ("SHFL", "STS", "LDS")}
    moving = sum(bytes_of(name) * n for name, n in added.items() if name.startswith(tuple(moved)))
    issue, l1 = sum(added.values()) * WARPS / SCHEDULERS, moving * 32 * WARPS / BYTES
    return *moved.values(), issue, l1


def markdown() -> str:
    """The table, with its setting."""
    lines = [
        "# A tile's rotation, in three ways",
        "",
        "For sm_80; no GPU ran. What a rotation adds to a kernel that only copies a tile, float32, four warps:",
        "shuffles, stores and loads of shared memory per warp; cycles that a multiprocessor needs at least to",
        "issue all instructions (4 of a warp per cycle), and for L1 (128 bytes per cycle).",
        "",
        "```sh",
        "python -m measure.triton_rotation",
        "```",
        "",
        ", ".join(f"{name} {version}" for name, version in versions("triton").items()) + ".",
        "",
        "| tile | way | shuffles | stores | loads | issue | L1 |",
        "|---:|---|---:|---:|---:|---:|---:|",
    ]
    for tile in TILES:
        for way in WAYS[1:]:
            *moved, issue, l1 = cost(way, tile)
            lines.append(f"| {' | '.join(map(str, [tile, way, *moved, f'{issue:.0f}', f'{l1:.0f}']))} |")
    return "\n".join(lines) + "\n"


def main(folder: Path = FOLDER) -> None:
    """Write measure/results/triton/rotation.md."""
    (folder / "rotation.md").write_text(page := markdown(), encoding="utf-8")
    print(page)


if __name__ == "__main__":
    main()
