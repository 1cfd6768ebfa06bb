"""The cost of the Triton kernels on a GPU: every figure of measure/results/gpu, in one command.

bf16, B=4, H=16, L=4096, against PyTorch's flash kernel without any encoding; for some also against compiled
FlexAttention that looks up Q @ RK^T, and S handed to PyTorch's kernel as a mask; decoding; sequences too long for
quadratic memory; and what a call costs the host. Each candidate is first checked against float64. It writes grid/,
peers/, decoding/, host.json and long.json, and README.md with the goals that were reached, after each part. Begun
again, it measures what is missing, and the long sequences and the host again.

    python -m measure.gpu
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch

import relattn
from measure import markdown
from measure.candidates import CANDIDATES
from measure.host import host_seconds
from measure.measurements import PACKAGES, Measurement, Results
from measure.memory import GIB, Memory, current, in_own_process, peak, reset_peak
from measure.power_law import fit
from measure.run import Benchmark
from measure.settings import Settings
from relattn.cli.bench.case import step
from relattn.cli.bench.relattn_candidates import FLOOR
from relattn.cli.bench.workload import DECODING, FORWARD, TRAINING, Workload
from relattn.cli.machine import machine, versions
from relattn_lab.support.files import write_json
from relattn_lab.support.progress import Silent

FOLDER = Path(__file__).parent / "results" / "gpu"
OURS, FLEX, AS_MASK = "relattn triton", "flex", "sdpa, S as mask"
HOSTED = (FLOOR, OURS)
PATIENCE = 120.0


def settings(device: str) -> dict[str, tuple[Settings, tuple[str, ...]]]:
    """What is measured, and the candidates, by the folder that each fills."""
    shape = {"heads": (16,), "batches": (4,), "dtype": "bfloat16", "device": device, "patience": PATIENCE}
    grid = Settings(
        encodings=("relative", "shaw-keys", "alibi"), lengths=(4096,), causal=("no", "yes"), modes=(FORWARD, TRAINING),
        head_dims=(64, 128), **shape,
    )  # fmt: skip
    peers = Settings(
        encodings=("relative", "alibi"), lengths=(4096,), causal=("yes",), modes=(FORWARD, TRAINING), **shape
    )
    decoding = Settings(
        encodings=("relative", "alibi"), lengths=(8192, 65536), causal=("yes",), modes=(DECODING,), **shape
    )
    every, ours = (FLOOR, OURS, FLEX, AS_MASK), (FLOOR, OURS)
    return {"grid": (grid, ours), "decoding": (decoding, ours), "peers": (peers, every)}


# --- sequences of which no quadratic memory could be held


@dataclass(frozen=True)
class Long:
    """A causal training step of one sequence over an unclipped table, D = 64."""

    length: int
    heads: int
    window: int | None


LONGEST = (Long(1_000_000, 1, 4096), Long(32_768, 16, None), Long(65_536, 16, None), Long(131_072, 16, None))
LINEAR = 1.1
"""The largest exponent of the length by which memory beyond inputs, outputs and gradients may grow."""


def long_step(began: Callable[[], None], asked: Long, device: str) -> Memory:
    """One step, after another step that is not counted."""
    shape = (1, asked.heads, asked.length, 64)
    query, key, value, upstream = (torch.randn(shape, device=device, dtype=torch.bfloat16) for _ in range(4))
    encoding = relattn.RelativeEmbedding(64, asked.window or asked.length, causal=True).to(device, torch.bfloat16)
    inputs = [tensor.requires_grad_() for tensor in (query, key, value)]
    leaves = [*inputs, *encoding.parameters()]
    window = None if asked.window is None else (asked.window - 1, 0)

    def step() -> int:
        output = relattn.relative_attention(
            query, key, value, is_causal=True, window=window, encoding=encoding, backend="triton"
        )
        gradients = torch.autograd.grad(output, leaves, upstream)
        torch.cuda.synchronize()
        return sum(tensor.nbytes for tensor in (output, *gradients))

    step()
    began()
    before, start = current(device), time.perf_counter()
    reset_peak(device)
    returned = step()
    held = sum(tensor.nbytes for tensor in (*leaves, upstream))
    return Memory(held, peak(device) - before, returned, time.perf_counter() - start)


def long_figures(device: str) -> list[dict[str, Any]]:
    """The seconds and bytes of each of LONGEST, or why there are none."""
    figures = []
    for asked in LONGEST:
        try:
            memory = in_own_process(long_step, (asked, device), None, PATIENCE)
        except RuntimeError as error:
            figures.append(asdict(asked) | {"reason": str(error)})
        else:
            figures.append(asdict(asked) | {"seconds": memory.seconds, "peak": memory.peak, "beyond": memory.beyond})
    return figures


# --- what the host does for a call, while the device is busy with others


def host_figures(device: str) -> list[dict[str, Any]]:
    """Median milliseconds of the host, for the floor and for ours, of each workload of the grid with 64 features."""
    figures: list[dict[str, Any]] = []
    for workload in settings(device)["grid"][0].workloads():
        if workload.head_dim == 64 and workload.causal:
            figures.append({"workload": str(workload)} | {name: _host_milliseconds(name, workload) for name in HOSTED})
    return figures


def _host_milliseconds(name: str, workload: Workload) -> float:
    case = CANDIDATES[name].case(workload)
    call = CANDIDATES[name].prepare(case)
    once = partial(step, case, call) if workload.training else call
    with torch.set_grad_enabled(workload.training):
        for _ in range(3):  # the first also chooses sizes
            once()
        return 1000.0 * host_seconds(once)


# --- what was asked for, and what was found


@dataclass(frozen=True)
class Goal:
    """A bound on the time of ours over another's: at most `bound`."""

    encodings: tuple[str, ...]
    mode: str
    against: str
    bound: float


GOALS = (
    Goal(("relative", "shaw-keys"), FORWARD, FLOOR, 2.2),
    Goal(("relative", "shaw-keys"), TRAINING, FLOOR, 2.6),
    Goal(("alibi",), FORWARD, FLOOR, 1.25),
    Goal(("alibi",), TRAINING, FLOOR, 1.5),
    Goal(("relative",), TRAINING, FLEX, 1 / 1.5),
    Goal(("relative",), TRAINING, AS_MASK, 1 / 2),
    Goal(("relative", "alibi"), DECODING, FLOOR, 1.3),
)


def verdicts(found: Results) -> Iterator[list[str]]:
    """One row per goal and workload: the goal, the result, and whether the result reaches the goal."""
    by_place = {(m.workload, m.candidate): m for m in found.measurements}
    for workload in dict.fromkeys(m.workload for m in found.measurements):
        for goal in GOALS:
            ours, other = (by_place.get((workload, name)) for name in (OURS, goal.against))
            if workload.encoding in goal.encodings and workload.mode == goal.mode and other is not None:
                yield [str(workload), goal.against, f"{goal.bound:.2f}", *_verdict(ours, other, goal.bound)]


def _verdict(ours: Measurement | None, other: Measurement, bound: float) -> list[str]:
    """The floor's time is in every pair, so it is not divided by again."""
    for measurement in (ours, other):
        if measurement is None or measurement.timing is None:
            return ["", "not measured" if measurement is None else measurement.reason or "not measured"]
    assert ours is not None and ours.timing is not None and other.timing is not None
    ratio = ours.timing.ratio.median / (1.0 if other.candidate == FLOOR else other.timing.ratio.median)
    return [f"{ratio:.2f}", "reached" if ratio <= bound else "missed"]


def growth(long: Sequence[dict[str, Any]]) -> str:
    """How the memory grows with the length over the calls without a window, and whether that is linear."""
    points = {one["length"]: one["beyond"] for one in long if one["window"] is None and "beyond" in one}
    law = fit(points)  # pyright: ignore[reportArgumentType]
    if law is None:
        return "How memory grows with the length was not measured: that takes two lengths without a window."
    lengths = " and ".join(f"{length:,}" for length in (min(points), max(points)))  # pyright: ignore[reportCallIssue, reportArgumentType]
    verdict = "reached" if law.exponent <= LINEAR else "missed"
    return f"Between {lengths} this memory grows as L^{law.exponent:.2f}; at most L^{LINEAR:.2f} was asked: {verdict}."


def report(found: dict[str, Results], long: Sequence[dict[str, Any]] = (), host: Sequence[dict[str, Any]] = ()) -> str:
    """README.md: goals, tables, the host, long sequences; what was not measured is named."""
    rows = [["workload", "against", "at most", "found", ""], ["---", "---", "---:", "---:", "---"]]
    rows += [row for results in found.values() for row in verdicts(results)]
    by = next(iter(found.values())).versions.get("triton")
    lines = ["# `python -m measure.gpu`", ""]
    lines += [
        f"Time of `triton` (Triton {by}) over that of each other candidate. Times are the device's: it is kept busy"
    ]
    lines += ["before each call, so that it waits for no launch.", ""]
    lines += [f"| {' | '.join(row)} |" for row in rows]
    for name, results in found.items():
        lines += ["", f"## {name.capitalize()}", "", markdown.text(results).rstrip()]
        reasons = [(one, one.reason.replace("`", "")) for one in results.measurements if one.reason]
        refused = [f"- {one.candidate}, {one.workload}: {reason}" for one, reason in reasons]
        lines += ["", "Without a figure:", "", *refused] if refused else []
    missing = [name for name in settings("cpu") if name not in found]
    missing += ([] if long else ["long sequences"]) + ([] if host else ["the host"])
    if missing:
        lines += ["", f"Not measured yet: {', '.join(missing)}."]
    if host:
        lines += [
            "",
            "## The host",
            "",
            "Milliseconds until a call returns, while the device is busy: the host may run ahead.",
        ]
        lines += ["", f"| workload | {' | '.join(HOSTED)} |", "| --- | ---: | ---: |"]
        lines += [f"| {one['workload']} | {' | '.join(f'{one[name]:.2f}' for name in HOSTED)} |" for one in host]
    if not long:
        return "\n".join(lines) + "\n"
    lines += ["", "## Long sequences", "", "Causal training steps over an unclipped table, one sequence, D = 64:", ""]
    lines += ["| length | heads | window | seconds | GiB beyond inputs, outputs and gradients |"]
    lines += ["| ---: | ---: | ---: | ---: | ---: |"]
    for one in long:
        place = f"| {one['length']:,} | {one['heads']} | {one['window'] or 'none'} |"
        if "reason" in one:
            lines.append(f"{place} {one['reason']} | |")
        else:
            lines.append(f"{place} {one['seconds']:.2f} | {one['beyond'] / GIB:.2f} |")  # pyright: ignore[reportOperatorIssue]
    return "\n".join([*lines, "", growth(long)]) + "\n"


def main(folder: Path = FOLDER) -> None:
    """Measure, keeping what is done so far, and write the report."""
    if not torch.cuda.is_available():
        sys.exit(f"measure/gpu.py measures a CUDA GPU; torch {torch.__version__} finds none here")
    found = {}
    for name, (asked, candidates) in settings("cuda").items():
        print(f"{name}: {len(list(asked.workloads()))} workloads", flush=True)
        found[name] = Benchmark(asked, folder / name, Silent(), candidates).run()
        (folder / "README.md").write_text(report(found), encoding="utf-8")
    host, long = host_figures("cuda"), long_figures("cuda")
    for name, figures in (("host", host), ("long", long)):
        write_json(folder / f"{name}.json", {"machine": machine(), "versions": versions(*PACKAGES), "figures": figures})
    (folder / "README.md").write_text(report(found, long, host), encoding="utf-8")


if __name__ == "__main__":
    main()
