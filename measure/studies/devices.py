"""What context parallelism costs: memory per process, bytes sent, and pairs per process. Speed is not measured."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch.distributed.device_mesh import init_device_mesh

import relattn
from measure.memory import MIB, current, peak, reset_peak
from measure.studies.study import Figures, Study, table
from relattn.distributed import context_parallel_attention, traffic
from relattn.distributed.choose import Rotate
from relattn.distributed.group import Group
from relattn.distributed.parts import Layout, pieces

HEADS, WIDTH = 8, 64


def encoding() -> relattn.RelativeEncoding:
    """The same in all processes."""
    torch.manual_seed(0)
    return relattn.ShawEmbedding(WIDTH, 128)


def held_by(attend: Callable[..., Any], own: int) -> int:
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
    """One training step of a process, which then ends at once: see `relattn_lab.processes.Processes.leave`."""
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"tcp://127.0.0.1:{port}", rank=rank, world_size=world)
    queue.put({"rank": rank, **found_by(rank, world, length, layout, rotate, window)})
    dist.barrier()
    os._exit(0)


def found_by(rank: int, world: int, length: int, layout: Layout, rotate: Rotate, window: int | None) -> dict[str, int]:
    """The bytes that a process held and sent, and the pairs that it computed."""
    mesh = init_device_mesh("cpu", (world,))
    groups: list[Group] = []
    made = Group.__init__

    def counted(self: Group, *arguments: Any) -> None:
        made(self, *arguments)
        groups.append(self)

    Group.__init__ = counted  # pyright: ignore[reportAttributeAccessIssue]
    limits = None if window is None else (window, 0)
    attend = partial(context_parallel_attention, mesh=mesh, layout=layout, rotate=rotate, window=limits)
    held_by(attend, 1024)
    groups.clear()
    held = held_by(attend, length // world)
    Group.__init__ = made
    mine = pieces(rank, world, length // world, layout)
    seen = length if window is None else window + 1
    pairs = sum(min(piece.start + offset + 1, seen) for piece in mine for offset in range(piece.length))
    return {"beyond_mib": round(held / MIB), "sent": sum(group.sent for group in groups), "pairs": pairs}


def measured(world: int, layout: Layout, rotate: Rotate, window: int | None, length: int) -> Figures:
    """A step of all processes: the bytes that they held and sent, beside the formula."""
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
        "beyond_mib": [one["beyond_mib"] for one in found], "sent": [one["sent"] for one in found],
        "formula": sum(formula), "pairs": [one["pairs"] for one in found],
    }  # fmt: skip


def alone(backend: str, length: int) -> Figures:
    """A step of one process."""
    queue = mp.get_context("spawn").SimpleQueue()
    worker = mp.get_context("spawn").Process(target=step_alone, args=(length, backend, queue))
    worker.start()
    worker.join()
    if worker.exitcode:
        raise RuntimeError(f"one process, {backend}: it has failed")
    return {"beyond_mib": [queue.get()]}


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
ALONE = ("native",)
LENGTH = 65536
SETTING = (
    f"A training step of {LENGTH:,} tokens, {HEADS} heads of {WIDTH}, float32, causal, Shaw's embedding clipped at "
    "128, batch 1, split over processes with gloo, one thread each. MiB: what a process holds at its highest beyond "
    "its inputs, output and gradients, over the processes. Sent: bytes counted where they are sent, by one process, "
    "forward and backward, beside the formula of `relattn.distributed.traffic`. Pairs: the largest number of pairs "
    "on a process, divided by the smallest. Speed is not measured: the processes share two cores."
)


def study(name: str) -> Study:
    """One process, and every case of several."""
    measurements: dict[str, Callable[[], Figures]] = {key_alone(each): partial(alone, each, LENGTH) for each in ALONE}
    measurements |= {key_of(*case): partial(measured, *case, LENGTH) for case in CASES}
    return Study(SETTING, measurements, markdown, threads=1)


def key_alone(backend: str) -> str:
    """The name of a measurement of one process."""
    return f"1, {backend}"


def key_of(world: int, layout: Layout, rotate: Rotate, window: int | None) -> str:
    """The name of a measurement of several."""
    return f"{world}, {layout}, {rotate}{'' if window is None else f', window {window}'}"


def markdown(figures: Mapping[str, Figures]) -> str:
    """One row for each measurement."""
    rows = [["1", "", f"`{each}`", "", _range(figures[key_alone(each)]["beyond_mib"]), "", "", ""] for each in ALONE]
    for world, layout, rotate, window in CASES:
        found = figures[key_of(world, layout, rotate, window)]
        balance = max(found["pairs"]) / min(found["pairs"])
        cells = [_range(found["beyond_mib"]), _range(found["sent"]), f"{found['formula']:,}", f"{balance:.3f}"]
        rows.append([str(world), layout, rotate, f"{window or ''}", *cells])
    right = dict.fromkeys(("window", "MiB", "sent", "formula", "pairs"), "---:")
    return table({"processes": "---:", "layout": "---", "way": "---"} | right, rows)


def _range(found: list[int]) -> str:
    low, high = min(found), max(found)
    return f"{low:,}" if low == high else f"{low:,} to {high:,}"
