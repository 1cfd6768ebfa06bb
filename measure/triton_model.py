"""A model of how fast the Triton kernels can be: no GPU runs, and no speed is claimed.

For one loop of each kernel, as assembled for a generation of GPUs, it counts per pair of tiles what three units of a
multiprocessor have to do at least, in cycles:

    issue    instructions of all warps / 4 per cycle
    L1       bytes of all warps to and from shared, local and global memory, of shuffles, and those of shared memory
             that products read by themselves / 128 per cycle
    tensor   multiply-adds of the products / those that the tensor cores do in a cycle

The largest of them is the kernel's bound. It is put over the tensor cycles of what FlashAttention-2 has to multiply for
the same pairs: 2 products forward, 5 backward. 1 would be a kernel that keeps the tensor cores busy with those alone.
Both branches of an `if` count, as if every tile were at an edge. A walk along clipped tables has loops of its own for
tiles beyond them, and a row of its own here. Each row has the size that suits it; a launch has one for all loops.
Nothing waits for memory, for another unit, or for another program that adds to the same place.

On sm_90 and sm_100 tiles of 32 compile to the older HMMA. We know no figure of NVIDIA's for its speed there, so all
products count at the speed of the newer kind. Tiles of 64 do too, though on sm_100 they may fill only a part of the
tensor cores. There one thread starts a product, and its sums lie in tensor memory. What warps move to and from that
memory counts as instructions; its bytes are not those of L1, and are left out.

    python -m measure.triton_model
"""

from __future__ import annotations

import re
import subprocess
import tempfile
from pathlib import Path
from typing import NamedTuple

import triton
from triton.backends.compiler import GPUTarget

from measure.triton_compiled import CALLS, FOLDER, Launch, constants_of, kernels
from relattn.backends.triton import candidates
from relattn.backends.triton.call import Call
from relattn.support.machine import versions
from tests.triton.compiled import compiled_for, products_in_its_loops

MULTIPLY_ADDS = {80: 1024, 86: 256, 89: 256, 90: 2048, 100: 4096, 120: 256}
"""Per cycle and multiprocessor, bfloat16 summed in float32: A100, GeForce RTX 3090 and 4090, H100, B200, RTX 5090. From
NVIDIA's whitepapers of their architectures, and for B200 its data sheet of HGX B200: 4.5 PFLOPS with sparsity, half of
it without; 4096 is what 148 multiprocessors need for that, at 1.86 GHz."""
SCHEDULERS, BYTES = 4, 128  # instructions, and bytes of L1, per cycle
FLASH = {"forward": 2, "backward": 5}
"""Products of FlashAttention-2 (Dao 2023)."""
IN_ORDER = ("queries", "keys", "tables")
"""The kernels of the backward pass in a fixed order."""
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
PRODUCT = ("HMMA", "HGMMA", "UTCHMMA")
BYTES_OF = {"128": 16, "64": 8, "16": 2, "U16": 2, "S16": 2, "U8": 1, "S8": 1}
"""What one thread moves, by an ending of the instruction's name; 4 without any."""


class Work(NamedTuple):
    """Cycles of a multiprocessor per pair of tiles, by the unit that needs them."""

    issue: float
    l1: float
    tensor: float


def work(launch: Launch, call: Call, capability: int, size: candidates.Sizes, which: int) -> Work:
    """Of one step of the kernel's walk, in one of its loops; where a step takes two tiles of pairs, of one of them."""
    tile, warps, stages, groups = size
    target = GPUTarget("cuda", capability, 32)
    result = compiled_for(
        target, launch.kernel, launch.given, constants_of(launch, call, size), warps, stages, assembled=True
    )
    loops, products = loops_of(instructions(result.asm["cubin"])), products_in_its_loops(result.asm["ttir"])
    if launch.kernel.__name__ == "mask_kernel":  # a tile of the mask needs one step of each loop, one in the other
        products = [sum(products)]
    assert len(loops) == len(products), (launch.kernel.__name__, len(loops), products)
    loop, products = loops[which], products[which]
    moved = sum(bytes_of(name) for name, _ in loop) * 32 * warps
    moved += sum(bytes_of_factors(name, operands, tile, warps) for name, operands in loop)
    tiles = groups * launch.more.get("TILES", 1)
    return Work(
        issue=len(loop) * warps / tiles / SCHEDULERS,
        l1=moved / tiles / BYTES,
        tensor=products * groups / tiles * tile * tile * call.query.shape[3] / MULTIPLY_ADDS[capability],
    )


def instructions(cubin: bytes) -> list[tuple[str, str]]:
    """Names and operands of a compiled kernel."""
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(cubin)
        file.flush()
        command = [Path(triton.__file__).parent / "backends/nvidia/bin/nvdisasm", "-c", file.name]
        return parsed(subprocess.run(command, capture_output=True, text=True, check=True).stdout)


def parsed(text: str) -> list[tuple[str, str]]:
    """Names and operands of what nvdisasm writes; a label is an instruction without operands."""
    found = []
    for line in text.splitlines():
        if label := re.match(r"\s*(\.L_x_\d+):", line):
            found.append((label[1], ""))
        elif instruction := re.match(r"\s*/\*[0-9a-f]+\*/\s+(?:@!?U?P\w+ )?\s*([A-Z0-9_.x]+)(.*);", line):
            found.append((instruction[1], instruction[2]))
    return found


def loops_of(code: list[tuple[str, str]]) -> list[list[tuple[str, str]]]:
    """The outermost loops that have products, without their labels, in their order.

    After the program's end stand the repetitions of waits, which jump back to where they were left: those are no loops.
    """
    labels = {name: at for at, (name, _) in enumerate(code) if name.startswith(".L")}
    end = max((at for at, (name, _) in enumerate(code) if name == "EXIT"), default=len(code))
    loops = []
    for at, (name, operands) in enumerate(code[:end]):
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
    if kind in ("LDGDEPBAR", "REDUX"):  # one counts copies, one adds registers
        return 0
    if kind in ("LDSM", "STSM"):
        return 4 * int(endings[-1]) if endings[-1].isdigit() else 4
    if kind.startswith(("LDS", "STS", "LDL", "STL", "LDG", "STG", "RED", "ATOM")):
        return next((size for ending, size in BYTES_OF.items() if ending in endings), 4)
    return 0


def bytes_of_factors(name: str, operands: str, tile: int, warps: int) -> int:
    """What a product of a program of these warps reads of shared memory without a load, at least.

    HGMMA [64, 16] x [16, N] is one product of four warps, UTCHMMA [tile, 16] x [16, 64 or more] one of the program. The
    first factor may lie elsewhere.
    """
    kind, *endings = name.split(".")
    if kind == "HGMMA":
        first = 64 if operands.split(",")[1].strip().startswith("gdesc") else 0
        return (first + int(endings[0].split("x")[1])) * 16 * 2 * warps // 4
    if kind == "UTCHMMA":
        first = tile if operands.strip().startswith("gdesc") else 0
        return (first + 64) * 16 * 2
    return 0


def best(launch: Launch, call: Call, capability: int, which: int = WITHIN) -> tuple[candidates.Sizes, Work]:
    """The size with the lowest bound per pair, and its work."""
    sizes = candidates.candidates(launch.kernel.__name__, call, capability)
    found = [(size, work(launch, call, capability, size, which)) for size in sizes]
    return min(found, key=lambda one: max(one[1]) / one[0].tile ** 2)


def reference(products: int, capability: int) -> float:
    """Tensor cycles per pair of so many products."""
    return products * 64 / MULTIPLY_ADDS[capability]


def _cells(size: candidates.Sizes, one: Work, scale: float = 1.0) -> list[str]:
    """The size, the cycles, and the unit that needs most."""
    several = f", {size.groups} tiles" if size.groups > 1 else ""
    figures = " / ".join(f"{cycles * scale:.0f}" for cycles in one)
    unit = max(Work._fields, key=lambda unit: getattr(one, unit))
    return [", ".join(map(str, size[:3])) + several, figures, unit]


def _of_pass(
    named: dict[str, Launch], direction: str, call: Call, capability: int, which: int
) -> tuple[list[str], float]:
    """The cells of a pass, and its bound per pair: of one kernel, or of those of the fixed order where that is taken.

    Beyond clipped tables nothing is summed for their rows.
    """
    if direction in named:
        size, one = best(named[direction], call, capability, which)
        return _cells(size, one), max(one) / size.tile**2
    taken = [name for name in IN_ORDER if f"{name}, in order" in named and not (name == "tables" and which == BEYOND)]
    found = [best(named[f"{name}, in order"], call, capability, which) for name in taken]
    per_pair = sum(max(one) / size.tile**2 for size, one in found)
    return ["in order", f"{per_pair * 64**2:.0f}", ""], per_pair


def rows() -> list[list[str]]:
    """One per generation and kind: the bounds, and the ratios of a forward pass and of a training step."""
    found = []
    for capability in MULTIPLY_ADDS:
        for kind, (name, which) in KINDS.items():
            call = CALLS[name]()
            total, flash, cells = 0.0, 0.0, []
            for direction, products in FLASH.items():
                told, per_pair = _of_pass(kernels(call, capability), direction, call, capability, which)
                per_flash = reference(products, capability)
                total, flash = total + per_pair, flash + per_flash
                cells += [*told, f"{per_pair / per_flash:.1f}"]
            found.append([f"sm_{capability}", kind, *cells, f"{total / flash:.1f}"])
            print(*found[-1], flush=True)
    return found


def rows_of_others() -> list[list[str]]:
    """Of relative keys: the kernels in a fixed order and that of a mask, per generation, for 64 queries and 64 keys."""
    found = []
    for capability in MULTIPLY_ADDS:
        call, masked = CALLS["relative keys"](), CALLS["relative keys, a float mask"]()
        launches = [(name, kernels(call, capability)[f"{name}, in order"], call) for name in IN_ORDER]
        total = 0.0
        for name, launch, given in [*launches, ("mask", kernels(masked, capability)["mask"], masked)]:
            size, one = best(launch, given, capability)
            total += max(one) / size.tile**2 if name in IN_ORDER else 0.0
            found.append([f"sm_{capability}", name, *_cells(size, one, (64 / size.tile) ** 2), ""])
            print(*found[-1], flush=True)
        ratio = f"{total / reference(FLASH['backward'], capability):.1f}"
        found.insert(-1, [f"sm_{capability}", ", ".join(IN_ORDER), "", f"{total * 64**2:.0f}", "", ratio])
    return found


def main() -> None:
    """Write measure/results/triton/model.md."""
    lines = [
        "# A model of the Triton kernels' speed",
        "",
        "No GPU ran, and no speed is claimed. Per pair of tiles, at a width of 64 in bfloat16: the cycles that a",
        "multiprocessor needs at least to issue the instructions / for L1 (memory of all kinds, shuffles, and what",
        "products read of shared memory) / on the tensor cores; which of them is the bound; and the bound over the",
        "tensor cycles of FlashAttention-2's products for the same pairs. The last column is a training step. Two",
        "sizes are timed: tile, warps, stages, and how many tiles of queries a program owns, where they are several.",
        "The one with the lower bound is shown. `measure/triton_model.py` says what the model leaves out.",
        '"In order": on an H100 these calls take the kernels of the fixed order; their bounds together, for 64 queries',
        "and 64 keys. In a bias' loop two branches load its numbers, and a tile takes one of them.",
        "",
        "sm_90 and sm_100 have two kinds of products; tiles of 32 compile to the older. All count at the speed of the",
        "newer kind, in the tiles that fill the tensor cores. So their tensor cycles are the least that are possible.",
        "On sm_100, what goes to and from tensor memory counts as instructions, and its bytes are left out.",
        "",
        "```sh",
        "python -m measure.triton_model",
        "```",
        "",
        ", ".join(f"{name} {version}" for name, version in versions("torch", "triton").items()) + ".",
        "",
        "| GPU | tables | forward | cycles | bound | ratio | backward | cycles | bound | ratio | step |",
        "|---|---|---|---:|---|---:|---|---:|---|---:|---:|",
        *(f"| {' | '.join(row)} |" for row in rows()),
        "",
        "## In a fixed order, and by a mask",
        "",
        "The kernels of the deterministic backward pass, and that of the gradient by a float mask that the heads",
        "share. Relative keys for every offset; the cycles of 64 queries and 64 keys, in the size with the lower",
        "bound. The three kernels of the fixed order together are put over FlashAttention-2's 5 products. The kernels",
        "of listed positions are left out: how many blocks of rows a tile has depends on the positions. The mask's",
        "kernel takes one step of its inner loop per head; what prepares a second step counts, too.",
        "",
        "| GPU | kernel | size | cycles | bound | ratio |",
        "|---|---|---|---:|---|---:|",
        *(f"| {' | '.join(row)} |" for row in rows_of_others()),
    ]
    (FOLDER / "model.md").write_text("\n".join(lines) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
