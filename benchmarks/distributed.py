"""What context parallelism costs: memory per rank, bytes sent, and pairs per rank.

A training step of one sequence, 8 heads of 64, float32, causal, split over 1, 2 and 4 processes with gloo, one thread
each. Memory: what a rank holds at its highest beyond its inputs, its output and its gradients. Bytes: counted where
they are sent, beside the formulas of `relattn.distributed.traffic`. Pairs: those that causality lets a rank's queries
see. Speed is no figure here: the processes share two cores.

    python benchmarks/distributed.py                    measures, and writes the table
    python benchmarks/distributed.py --length 8192      a shorter sequence
"""

from __future__ import annotations

import socket
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch.distributed.device_mesh import init_device_mesh

import relattn
from relattn.bench.memory import MIB, current, peak, reset_peak
from relattn.distributed.attention import context_parallel_attention
from relattn.distributed.group import Group
from relattn.distributed.layout import pieces

OUT = Path(__file__).parent / "results" / "distributed"
HEADS, WIDTH = 8, 64
WAYS = ("ring", "all_gather", "ulysses")


def step(
    rank: int, world: int, port: int, length: int, layout: str, rotate: str, window: int | None, queue: Any
) -> None:
    """One training step of a rank: what it held, sent and computed."""
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"tcp://127.0.0.1:{port}", rank=rank, world_size=world)
    mesh = init_device_mesh("cpu", (world,))
    sent: list[Group] = []
    counted = Group.__init__

    def counting(self: Group, *arguments: Any) -> None:
        counted(self, *arguments)
        sent.append(self)

    Group.__init__ = counting
    torch.manual_seed(0)
    encoding = relattn.ShawEmbedding(WIDTH, 128)
    own = length // world

    def run(own: int) -> tuple[int, int]:
        q, k, v = (torch.randn(1, HEADS, own, WIDTH, requires_grad=True) for _ in range(3))
        toward = torch.randn(1, HEADS, own, WIDTH)
        before = current("cpu")
        reset_peak("cpu")
        how: dict[str, Any] = {
            "encoding": encoding,
            "is_causal": True,
            "window": None if window is None else (window, 0),
        }
        if world == 1:
            output = relattn.relative_attention(q, k, v, **how)
        else:
            output = context_parallel_attention(q, k, v, mesh=mesh, layout=layout, rotate=rotate, **how)
        output.backward(toward)
        given = [q, k, v, *encoding.parameters()]
        return peak("cpu") - before, output.nbytes + sum(tensor.grad.nbytes for tensor in given)

    run(2048 // world)
    for parameter in encoding.parameters():
        parameter.grad = None
    sent.clear()
    held, known = run(own)
    mine = pieces(rank, world, own, layout)
    pairs = sum(piece.start + offset + 1 for piece in mine for offset in range(piece.length))
    queue.put(
        {"rank": rank, "beyond_mib": round((held - known) / MIB), "sent": sum(g.sent for g in sent), "pairs": pairs}
    )
    dist.destroy_process_group()


def measured(world: int, length: int, layout: str, rotate: str, window: int | None) -> list[dict[str, Any]]:
    """A step of all ranks."""
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
    found = [queue.get() for _ in workers]
    return sorted(found, key=lambda one: one["rank"])
