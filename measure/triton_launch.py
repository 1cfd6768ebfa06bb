"""What a launch of the Triton kernels costs the host, beside the same launch by Triton's own look-up.

No GPU is there. A driver that does nothing takes its place, so both ways end where the driver's work would begin. Times
are CPU time of the one thread, in turn in one process.

    python -m measure.triton_launch
"""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple

import torch
from triton.backends.compiler import GPUTarget
from triton.runtime.driver import driver

from measure.studies.study import figures_of, quartiles
from measure.triton_compiled import CLIPPED, FOLDER, Launch, constants_of, launches, untimed
from relattn import grid
from relattn.backends.triton.host import autotune
from relattn.backends.triton.host.call import Call
from relattn.cli.bench.timing import Spread
from relattn.cli.machine import machine, versions
from relattn.equation.problem import TABLES
from tests.triton.calls import BATCH, HEADS, WIDTH, meta_axis, meta_call, numbers
from tests.triton.compiled import given_at_run_time

LENGTH, PAIRS, LAUNCHES = 256, 25, 400
NAMES = "forward", "backward"
"""The launches of a training step."""
CAPABILITY = 90
TARGET = GPUTarget("cuda", CAPABILITY, 32)


class NoDriver:
    """Stands where Triton's driver of a GPU would stand; its launches return at once."""

    def __init__(self) -> None:
        self.utils = SimpleNamespace(
            load_binary=lambda name, kernel, shared, device: (1, 1, 0, 0, 1024),
            get_device_properties=lambda device: {"max_shared_mem": 227 * 1024},
        )

    def get_current_target(self) -> GPUTarget:
        """That of an H100."""
        return TARGET

    def get_current_device(self) -> int:
        """The first."""
        return 0

    def get_current_stream(self, device: int) -> int:
        """The first."""
        return 0

    def launcher_cls(self, source: Any, metadata: Any) -> Callable[..., None]:
        """What would hand the arguments to the GPU."""
        return lambda *arguments: None


class Cost(NamedTuple):
    """The arguments that are no constants; microseconds per launch with quartiles, ours and by Triton's look-up."""

    arguments: int
    ours: str
    theirs: str


SHAPE = {"rows": 2 * LENGTH - 1, "length": LENGTH, "highest": None}
MASK = torch.empty(BATCH, LENGTH, dtype=torch.bool, device="meta")
EVERYTHING = {
    "key_mask": MASK,
    "pair_mask": MASK[:, None, None].expand(BATCH, 1, LENGTH, LENGTH),
    "query_segments": (segments := torch.empty(BATCH, LENGTH, dtype=torch.int64, device="meta")),
    "key_segments": segments,
    "dropout_p": 0.1,
    "seed": numbers(),
    "softcap": 30.0,
    "key_bias": (numbers_of_keys := torch.empty(BATCH, HEADS, LENGTH, device="meta")),
    "key_shift": numbers_of_keys,
}
EXPLICIT = {"length": LENGTH, "highest": None}
ROWS = grid(16, 16)["y"]
CALLS = {
    "no table": meta_call(**SHAPE),
    "relative keys": meta_call(TABLES[:1], **SHAPE),
    "every table and a key mask": meta_call(TABLES, key_mask=MASK, **SHAPE),
    "every table, masks, dropout, softcap and key bias": meta_call(TABLES, **EVERYTHING, **SHAPE),
    "explicit positions with every table": meta_call(axes=(meta_axis(0, CLIPPED, length=LENGTH),), **EXPLICIT),
    "rows of a grid with every table": meta_call(
        axes=(meta_axis(0, CLIPPED, length=LENGTH)._replace(queries=ROWS, keys=ROWS),), **EXPLICIT
    ),
    "two explicit axes with own r and every table": meta_call(
        axes=tuple(meta_axis(number, CLIPPED, length=LENGTH, own=WIDTH) for number in (0, 1)), **EXPLICIT
    ),
}


def cost(launch: Launch, call: Call) -> Cost:
    """Medians over launches, in turn."""
    kernel, given, more = launch
    size = untimed(launch, call, CAPABILITY)
    constants = constants_of(launch, call, size)

    def ours() -> None:
        autotune.launch(kernel, call, lambda owned: LENGTH // owned * BATCH * HEADS, given, more=more)

    def theirs() -> None:
        kernel[(LENGTH // size.tile * BATCH * HEADS,)](
            *given, **constants, num_warps=size.warps, num_stages=size.stages, maxnreg=autotune.REGISTERS,
            default_dot_input_precision=call.precision,
        )  # fmt: skip

    for one in (ours, theirs) * 2:  # the first compiles
        one()
    times = [(_microseconds(ours), _microseconds(theirs)) for _ in range(PAIRS)]
    first, second = (quartiles(figures_of(Spread.of(list(column)))) for column in zip(*times, strict=True))
    return Cost(len(list(given_at_run_time(given))), first, second)


def _microseconds(launch: Callable[[], None]) -> float:
    start = time.thread_time()
    for _ in range(LAUNCHES):
        launch()
    return (time.thread_time() - start) / LAUNCHES * 1e6


def markdown() -> str:
    """The table, with its setting."""
    here = machine()
    lines = [
        "# What a launch of the Triton kernels costs the host",
        "",
        "No GPU is there: a driver that does nothing takes its place. B = 4, H = 16, L = 256, D = 64, bfloat16. CPU",
        f"time of the thread in microseconds: medians of {PAIRS} pairs with quartiles, {LAUNCHES} launches each, in",
        "turn in one process. Beside it the same launch by Triton's own look-up. Each follows one of its own kind;",
        "where others came between, ours is compared with these first.",
        "",
        "```sh",
        "python -m measure.triton_launch",
        "```",
        "",
        f"{time.strftime('%Y-%m-%d')}, {here['processor']}, {here['cores']} cores; "
        + ", ".join(f"{name} {version}" for name, version in versions("triton").items())
        + ".",
        "",
        "| launch | arguments | time | by Triton's look-up |",
        "|---|---:|---:|---:|",
    ]
    for kind, call in CALLS.items():
        for name, launch in zip(NAMES, launches(call, ordered=False), strict=True):
            found = cost(launch, call)
            lines.append(f"| {name}, {kind} | {found.arguments} | {found.ours} | {found.theirs} |")
    return "\n".join(lines) + "\n"


def main(folder: Path = FOLDER) -> None:
    """Write measure/results/triton/launch.md."""
    driver.set_active(NoDriver())  # pyright: ignore[reportArgumentType]
    (folder / "launch.md").write_text(page := markdown(), encoding="utf-8")
    print(page)


if __name__ == "__main__":
    main()
