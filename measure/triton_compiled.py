"""What each Triton kernel costs as compiled for six generations of GPUs, in the size that is taken untimed.

Registers and spilled bytes per thread, shared memory per program, and the products of tiles that two warps repeat. It
writes measure/results/triton/compiled.json and README.md; the tests hold the figures to their bounds.

    python -m measure.triton_compiled
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple
from unittest.mock import patch

import torch

from relattn import grid
from relattn.backends.triton.host import tile_configs
from relattn.backends.triton.host.call import Call
from relattn.backends.triton.host.pack import widths_of
from relattn.backends.triton.kernels import backward, forward, keys, ordered_launch
from relattn.cli.machine import versions
from relattn.equation.problem import TABLES
from tests.triton.calls import (
    SHARED_MEMORY,
    WIDTH,
    answered,
    every_gradient_of,
    launching,
    meta_axis,
    meta_call,
    numbers,
)
from tests.triton.compiled import Cost, compiled

FOLDER = Path(__file__).parent / "results" / "triton"
LENGTH = 4096
EVERY, CLIPPED = 2 * LENGTH - 1, 33
FUSED = {"queries_kernel": "backward", "mask_kernel": "mask"}
"""The kernels of the backward pass that adds across programs, by their names in the table."""
KEYS, VALUES = TABLES[:1], ("relative_keys", "relative_values")
MASK = torch.empty(4, 1, LENGTH, LENGTH, dtype=torch.bfloat16, device="meta")
DROPOUT = {"dropout_p": 0.1, "seed": numbers()}
CAPPED = {
    "softcap": 30.0, "key_bias": torch.empty(4, 16, LENGTH, device="meta"),
    "key_shift": torch.empty(4, 16, LENGTH, device="meta"),
    "query_segments": numbers(4, LENGTH), "key_segments": numbers(4, LENGTH),
}  # fmt: skip
CALLS: dict[str, Callable[..., Call]] = {
    "no table": lambda **given: meta_call(length=LENGTH, **given),
    "relative keys": lambda **given: meta_call(KEYS, EVERY, length=LENGTH, **given),
    "clipped relative keys": lambda **given: meta_call(KEYS, CLIPPED, length=LENGTH, **given),
    "clipped relative keys and values": lambda **given: meta_call(VALUES, CLIPPED, length=LENGTH, **given),
    "clipped relative keys and values, a cap, a key bias, segments": lambda **given: meta_call(
        VALUES, CLIPPED, length=LENGTH, **CAPPED, **given
    ),
    "every table, clipped": lambda **given: meta_call(TABLES, CLIPPED, length=LENGTH, **given),
    "relative keys and queries": lambda **given: meta_call(TABLES[:2], EVERY, length=LENGTH, **given),
    "a bias": lambda **given: meta_call(("bias",), 129, length=LENGTH, **given),
    "relative keys, a float mask": lambda **given: meta_call(KEYS, EVERY, length=LENGTH, pair_mask=MASK, **given),
    "relative keys, a start as a tensor": lambda **given: meta_call(
        KEYS, EVERY, length=LENGTH, offset=numbers(), **given
    ),
    "explicit: relative keys": lambda **given: _explicit(KEYS, **given),
    "explicit: a bias": lambda **given: _explicit(("bias",), **given),
    "explicit: every table": lambda **given: _explicit(TABLES, **given),
    "rows of a grid: every table": lambda **given: _on_rows(_explicit(TABLES, **given)),
    "no table, dropout": lambda **given: meta_call(length=LENGTH, **DROPOUT, **given),
    "relative keys, dropout": lambda **given: meta_call(KEYS, EVERY, length=LENGTH, **DROPOUT, **given),
}
WIDTHS = {
    64: tuple(CALLS),
    128: (
        "no table",
        "relative keys",
        "clipped relative keys and values",
        "every table, clipped",
        "relative keys and queries",
        "a bias",
        "relative keys, a float mask",
        "relative keys, dropout",
        "explicit: every table",
        "rows of a grid: every table",
    ),
    256: ("no table", "relative keys", "explicit: relative keys"),
}
IN_FLOAT32 = {
    64: ("no table", "relative keys", "every table, clipped"),
    128: ("relative keys",),
    256: ("relative keys", "explicit: relative keys"),
}
IN_PARTS = ("no table", "a bias")


def _explicit(
    tables: tuple[str, ...], *, width: int = WIDTH, dtype: torch.dtype = torch.bfloat16, **given: Any
) -> Call:
    """A causal call of explicit positions, as any other axis has them."""
    every = meta_axis(0, CLIPPED, length=LENGTH, width=width, dtype=dtype, highest=0)
    axis = every._replace(**dict.fromkeys(set(TABLES) - set(tables)))
    return meta_call(length=LENGTH, width=width, dtype=dtype, highest=None, axes=(axis,), **given)


def _on_rows(call: Call) -> Call:
    """The same, on the rows of a grid behind a class token."""
    (axis,), rows = call.axes, grid(39, 105, prefix_tokens=1)["y"]
    return replace(call, axes=(axis._replace(queries=rows, keys=rows),))


def workloads() -> Iterator[tuple[str, int, str, Call]]:
    """The table kind, the width, the dtype and the call of every row."""
    for width, kinds in WIDTHS.items():
        for kind in kinds:
            yield kind, width, "bfloat16", CALLS[kind](width=width)
    for width, kinds in IN_FLOAT32.items():
        for kind in kinds:
            yield kind, width, "float32", CALLS[kind](width=width, dtype=torch.float32)
    for kind in IN_PARTS:
        yield kind, 64, "tf32x3", CALLS[kind](dtype=torch.float32, precision="tf32x3")


class Launch(NamedTuple):
    """A kernel, its arguments, and the constants that it has beside the widths of the call."""

    kernel: Any
    given: tuple
    more: Mapping[str, int]


def launches(call: Call, ordered: bool, capability: int = 0) -> list[Launch]:
    """The kernels of a training step in their order, on a GPU of this capability; nothing is launched."""
    found: list[Launch] = []
    decide = backward.is_deterministic

    def note(
        kernel: Any, call: Call, programs: Callable[[int], int], given: tuple, *,
        more: Mapping[str, int] = MappingProxyType({}), **rest: Any,
    ) -> None:  # fmt: skip
        found.append(Launch(kernel, given, more))

    with ExitStack() as patches:
        for module in launching():
            patches.enter_context(patch.object(module, "launch", note))
        for module in (backward, keys, ordered_launch):
            patches.enter_context(patch.object(module, "architecture_of", lambda call: capability))
        patches.enter_context(
            patch.object(backward, "is_deterministic", lambda call, wanted: ordered or decide(call, wanted))
        )
        answers = forward.forward(call)
        backward.backward(call, answered(answers, answers.output, answers.lse), every_gradient_of(call))
    return found


def kernels(call: Call, capability: int) -> dict[str, Launch]:
    """The kernels of both backward passes by their names in the table, without those that add atomically where that
    generation takes none for the call.
    """
    forward_launch, *fused = launches(call, False, capability)
    named = {"forward": forward_launch}
    if not tile_configs.is_always_deterministic(call, capability, every_gradient_of(call)):
        named |= {FUSED[name]: each for each in fused if (name := each.kernel.__name__) in FUSED}
    in_order = launches(call, True, capability)[1:]
    return named | {f"{each.kernel.__name__.removesuffix('_kernel')}, in order": each for each in in_order}


def untimed(launch: Launch, call: Call, capability: int) -> tile_configs.TileConfig:
    """The size that is taken where nothing is timed."""
    return tile_configs.tile_configs(launch.kernel.__name__, call, capability)[0]


def row_of(workload: tuple[str, int, str], name: str, launch: Launch, call: Call, capability: int) -> dict[str, Any]:
    """What the kernel costs in the size that is taken untimed."""
    size = untimed(launch, call, capability)
    cost = cost_of(launch, call, size, capability)
    kind, width, dtype = workload
    place = {"tables": kind, "width": width, "dtype": dtype, "kernel": name, "capability": capability}
    return place | {"size": [size.tile, size.warps, size.stages]} | cost._asdict()


def cost_of(launch: Launch, call: Call, size: tile_configs.TileConfig, capability: int) -> Cost:
    """Of the kernel of a launch in a size."""
    constants = constants_of(launch, call, size)
    return compiled(launch.kernel, launch.given, constants, size.warps, size.stages, capability, call.precision)


def constants_of(launch: Launch, call: Call, size: tile_configs.TileConfig) -> dict[str, int]:
    """What the kernel of a launch is compiled for, in a size."""
    return {**widths_of(call), **launch.more, **tile_configs.constants(launch.kernel, size)}


def markdown(rows: list[dict[str, Any]]) -> str:
    """One table per generation."""
    lines = [
        "# The Triton kernels as compiled",
        "",
        "In the size that is taken where nothing is timed: tile, warps, stages. Registers (R) and spilled bytes (S)",
        "per thread, KiB of shared memory (M) per program. 2x: so many of its products are computed by two warps.",
        'Rows that end in "in order" are the kernels of the deterministic backward pass: "tables" sums over offsets of',
        'the sequence, "rows" over those of explicit positions, "several" does more than one of these and of "mask",',
        "the gradient by a float mask. tf32x3: float32, multiplied in three parts. On sm_90 the sizes are those that",
        'an H100 takes. A call without a row "backward" is always summed in order there. No GPU ran.',
        "",
        "```sh",
        "python -m measure.triton_compiled",
        "```",
        "",
        ", ".join(f"{name} {version}" for name, version in versions("torch", "triton").items()) + ".",
    ]
    for capability, room in SHARED_MEMORY.items():
        here = [row for row in rows if row["capability"] == capability]
        lines += ["", f"## sm_{capability}, {room} KiB of shared memory", ""]
        lines += ["| tables | width | kernel | size | R | S | M | 2x |", "|---|---:|---|---|---:|---:|---:|---:|"]
        for row in here:
            size = ", ".join(map(str, row["size"]))
            width = f"{row['width']}" + ("" if row["dtype"] == "bfloat16" else f", {row['dtype']}")
            figures = f"{row['registers']} | {row['spilled']} | {row['shared'] / 1024:.0f} | {row['repeated'] or ''}"
            lines.append(f"| {row['tables']} | {width} | {row['kernel']} | {size} | {figures} |")
    return "\n".join(lines) + "\n"


def main(folder: Path = FOLDER) -> None:
    """Compile everything, in some twenty minutes, and write the table."""
    rows = []
    for kind, width, dtype, call in workloads():
        for capability in SHARED_MEMORY:
            for name, launch in kernels(call, capability).items():
                rows.append(row_of((kind, width, dtype), name, launch, call, capability))
                print(*rows[-1].values(), flush=True)
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "compiled.json").write_text(json.dumps(rows, indent=1) + "\n", encoding="utf-8")
    (folder / "README.md").write_text(markdown(rows), encoding="utf-8")


if __name__ == "__main__":
    main()
