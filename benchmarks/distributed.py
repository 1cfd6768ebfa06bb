"""What context parallelism costs: memory per rank, bytes sent, and pairs per rank.

A training step of one sequence, 8 heads of 64, float32, causal, split over 1, 2 and 4 processes with gloo, one thread
each. Memory: the most that a rank holds beyond its inputs, its output and its gradients. Bytes: counted where they are
sent, beside the formulas of `relattn.distributed.traffic`. Pairs: those that a rank's queries see under causality.
Speed is not measured: the processes share two cores.

    python benchmarks/distributed.py                    measures what figures.json has not yet, and writes README.md
    python benchmarks/distributed.py --length 8192      a shorter sequence
"""

from __future__ import annotations

import argparse
import json
import socket
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import Tensor
from torch.distributed.device_mesh import init_device_mesh

import relattn
from relattn.bench.memory import MIB, current, peak, reset_peak
from relattn.distributed import context_parallel_attention, traffic
from relattn.distributed.choose import Rotate
from relattn.distributed.group import Group
from relattn.distributed.layout import Layout, pieces
from relattn.support.machine import machine

OUT = Path(__file__).parent / "results" / "distributed"
HEADS, WIDTH = 8, 64


def encoding() -> relattn.RelativeEncoding:
    """The same on all ranks."""
    torch.manual_seed(0)
    return relattn.ShawEmbedding(WIDTH, 128)


def held_by(attend: Callable[..., Tensor], own: int) -> int:
    """The most bytes of a training step, beyond inputs, output and gradients."""
    made = encoding()
    q, k, v = (torch.randn(1, HEADS, own, WIDTH, requires_grad=True) for _ in range(3))
    toward = torch.randn(1, HEADS, own, WIDTH)
    before = current("cpu")
    reset_peak("cpu")
    output = attend(q, k, v, encoding=made, is_causal=True)
    output.backward(toward)
    gradients = [tensor.grad for tensor in (q, k, v, *made.parameters())]
    known = output.nbytes + sum(gradient.nbytes for gradient in gradients if gradient is not None)
    return peak("cpu") - before - known


def step_alone(length: int, backend: str, queue: Any) -> None:
    """Of one process."""
    torch.set_num_threads(1)
    attend = partial(relattn.relative_attention, backend=backend)
    held_by(attend, 1024)
    queue.put(round(held_by(attend, length) / MIB))


def step(
    rank: int, world: int, port: int, length: int, layout: Layout, rotate: Rotate, window: int | None, queue: Any
) -> None:
    """One training step of a rank: the bytes that it held and sent, and the pairs that it computed."""
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"tcp://127.0.0.1:{port}", rank=rank, world_size=world)
    mesh = init_device_mesh("cpu", (world,))
    groups: list[Group] = []
    counted = Group.__init__

    def counting(self: Group, *arguments: Any) -> None:
        counted(self, *arguments)
        groups.append(self)

    Group.__init__ = counting
    limits = None if window is None else (window, 0)
    attend = partial(context_parallel_attention, mesh=mesh, layout=layout, rotate=rotate, window=limits)
    held_by(attend, 1024)
    groups.clear()
    held = held_by(attend, length // world)
    mine = pieces(rank, world, length // world, layout)
    seen = length if window is None else window + 1
    pairs = sum(min(piece.start + offset + 1, seen) for piece in mine for offset in range(piece.length))
    queue.put({
        "rank": rank, "beyond_mib": round(held / MIB), "sent": sum(group.sent for group in groups), "pairs": pairs,
    })  # fmt: skip
    dist.destroy_process_group()


def measured(world: int, length: int, layout: Layout, rotate: Rotate, window: int | None) -> dict[str, Any]:
    """A step of all ranks: the bytes that they held and sent, beside the formula."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    context = mp.get_context("spawn")
    queue = context.SimpleQueue()
    workers = [
        context.Process(target=step, args=(rank, world, port, length, layout, rotate, window, queue))
        for rank in range(world)
    ]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    if any(worker.exitcode for worker in workers):
        raise RuntimeError(f"{world} processes, {layout}, {rotate}: a process has failed")
    found = sorted((queue.get() for _ in workers), key=lambda one: one["rank"])
    part = length // world
    sizes = traffic.Sizes(world, 1, HEADS, HEADS, part, part, WIDTH, WIDTH, size=4, sums=4)
    hops = traffic.hops(world, part, part, None if window is None else -window, 0, layout)
    formula = {
        "ring": traffic.ring(sizes, hops), "all_gather": traffic.all_gather(sizes), "ulysses": traffic.ulysses(sizes),
    }[rotate]  # fmt: skip
    return {
        "processes": world, "layout": layout, "rotate": rotate, "window": window,
        "beyond_mib": [one["beyond_mib"] for one in found], "sent": [one["sent"] for one in found],
        "formula": sum(formula), "pairs": [one["pairs"] for one in found],
    }  # fmt: skip


def alone(length: int, backend: str) -> dict[str, Any]:
    """A step of one process."""
    queue = mp.get_context("spawn").SimpleQueue()
    worker = mp.get_context("spawn").Process(target=step_alone, args=(length, backend, queue))
    worker.start()
    worker.join()
    if worker.exitcode:
        raise RuntimeError(f"one process, {backend}: it has failed")
    return {"processes": 1, "backend": backend, "beyond_mib": [queue.get()]}


def table(found: list[dict[str, Any]], length: int) -> str:
    """The page."""
    lines = [
        "# Several devices: what a rank holds and sends",
        "",
        "```sh", f"python benchmarks/distributed.py --length {length}", "```",
        "",
        f"A training step of {length:,} tokens, {HEADS} heads of {WIDTH}, float32, causal, Shaw's embedding clipped at",
        "128, batch 1. MiB: what a process holds at its highest beyond its inputs, output and gradients, over the",
        "ranks. Bytes: counted where they are sent, by one rank, forward and backward, beside the formula. Pairs:",
        "those of the rank that has most over those of the one that has fewest.",
        "",
        "| processes | layout | way | window | MiB | sent | formula | pairs |",
        "|---:|---|---|---:|---:|---:|---:|---:|",
    ]  # fmt: skip
    for one in found:
        low, high = min(one["beyond_mib"]), max(one["beyond_mib"])
        held = f"{low}" if low == high else f"{low} to {high}"
        if one["processes"] == 1:
            lines.append(f"| 1 | | `{one['backend']}` | | {held} | | | |")
            continue
        sent = sorted(set(one["sent"]))
        balance = max(one["pairs"]) / min(one["pairs"])
        lines.append(
            f"| {one['processes']} | {one['layout']} | {one['rotate']} | {one['window'] or ''} | {held} "
            f"| {' to '.join(f'{n:,}' for n in (sent if len(sent) < 3 else [sent[0], sent[-1]]))} | {one['formula']:,} "
            f"| {balance:.3f} |"
        )
    return "\n".join(lines) + "\n"


CASES: tuple[tuple[int, Layout, Rotate, int | None], ...] = (
    (2, "zigzag", "ring", None),
    (2, "contiguous", "ring", None),
    (2, "zigzag", "all_gather", None),
    (2, "zigzag", "ulysses", None),
    (4, "zigzag", "ring", None),
    (4, "contiguous", "ring", None),
    (4, "zigzag", "all_gather", None),
    (4, "zigzag", "ulysses", None),
    (4, "contiguous", "ring", 1024),
)
LENGTH = 65536


def main() -> None:
    """Measure what figures.json has not yet of this length, and write the page."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--length", type=int, default=LENGTH)
    length = parser.parse_args().length
    OUT.mkdir(parents=True, exist_ok=True)
    figures = OUT / "figures.json"
    kept = json.loads(figures.read_text()) if figures.exists() else {}
    found: list[dict[str, Any]] = kept["entries"] if kept.get("length") == length else []
    wanted: list[Callable[[], dict[str, Any]]] = [partial(alone, length, backend) for backend in ("native", "tiled")]
    wanted += [partial(measured, case[0], length, *case[1:]) for case in CASES]
    for measure in wanted[len(found) :]:
        found.append(measure())
        print(found[-1], flush=True)
        document = {"machine": machine(), "torch": torch.__version__, "length": length, "entries": found}
        figures.write_text(json.dumps(document, indent=1) + "\n")
    (OUT / "README.md").write_text(table(found, length))


if __name__ == "__main__":
    main()
