"""How long a training step of one attention layer takes on 8 to 1,024 ranks: a model, not a measurement.

    python -m measure.distributed_model

Writes model.md and model.svg in measure/results/devices-model. Bytes are those of `relattn.distributed.traffic`,
pairs those of `relattn.distributed.parts`. Time passes hop by hop: see `ring`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np

from measure.distributed_model_table import write
from measure.ring_bound import hidden_from
from relattn.distributed import traffic
from relattn.distributed.parts import Layout, multiple, pieces
from relattn.distributed.traffic import Sizes

OUT = Path(__file__).parent / "results" / "devices-model"
RANKS = tuple(2**power for power in range(3, 11))
HEADS, WIDTH, SIZE, SUMS = 32, 128, 2, 4
"""Hq, D = Dv, bytes of bfloat16 and of float32, in which sums are taken. The batch is 1."""
BACKWARD = 2.5
"""Five products beside the two of the forward pass."""


@dataclass(frozen=True)
class Machine:
    """The assumptions of the model.

    flops: operations per second of a rank's products, at the share `use` of its peak. node: the ranks of a node.
    within, between: bytes per second that a rank sends, and at the same time receives, inside its node and out of it;
    each rank has its own connection. latency: seconds before a message starts.
    """

    flops: float = 400e12
    use: float = 0.5
    node: int = 8
    within: float = 400e9
    between: float = 50e9
    latency: float = 10e-6

    def bandwidth(self, world: int, hop: int) -> np.ndarray:
        """[N]: of each rank to the one `hop` further round."""
        ranks = np.arange(world)
        same = ranks // self.node == (ranks + hop) % world // self.node
        return np.where(same, self.within, self.between)

    def products(self, pairs: np.ndarray | int, heads: float = HEADS) -> np.ndarray | float:
        """Seconds of the forward pass's two products over so many pairs of each head."""
        return pairs * (heads * 4 * WIDTH / (self.flops * self.use))


class Case(NamedTuple):
    """Causal attention over `length` tokens; window: the keys that a query sees, itself included; None: all."""

    length: int
    window: int | None
    key_heads: int

    def sizes(self, world: int) -> Sizes:
        """For the formulas."""
        part = self.length // world
        return Sizes(world, 1, HEADS, self.key_heads, part, part, WIDTH, WIDTH, SIZE, SUMS)

    def lowest(self) -> int | None:
        """The limit of key - query."""
        return None if self.window is None else 1 - self.window


CASES = tuple(
    Case(length, window, key_heads) for key_heads in (8, 32) for length in (2**17, 2**20) for window in (None, 4096)
)


def pairs(case: Case, world: int, layout: Layout) -> np.ndarray:
    """[N, N]: the visible pairs of each rank's queries with each rank's keys."""
    part = case.length // world
    block = part * world // multiple(world, layout)
    starts = np.array([[piece.start for piece in pieces(rank, world, part, layout)] for rank in range(world)])
    offsets = starts[None, :, None, :] - starts[:, None, :, None]  # [query rank, key rank, block, block]
    found = _pairs_up_to(0 - offsets, block)
    if case.window is not None:
        found = found - _pairs_up_to(-case.window - offsets, block)
    return found.sum((2, 3))


def _pairs_up_to(furthest: np.ndarray, block: int) -> np.ndarray:
    """The number of (i, j) below `block` with j - i <= furthest."""
    below = np.clip(block + furthest, 0, block)
    above = np.clip(block - 1 - furthest, 0, block - 1)
    return np.where(furthest < 0, below * (below + 1) // 2, block * block - above * (above + 1) // 2)


def ring(case: Case, world: int, machine: Machine, layout: Layout) -> float:
    """Both passes, hop by hop: a rank computes with its chunk while the next chunk comes and this one goes.

    A hop ends on a rank when its products are done and its messages have ended. A message starts when both its ranks
    are in that hop.
    """
    sizes, met = case.sizes(world), pairs(case, world, layout)
    hops = traffic.hops(world, sizes.queries, sizes.keys, case.lowest(), 0, layout)
    ranks = np.arange(world)
    products = np.array([machine.products(met[ranks, (ranks - step) % world]) for step in range(hops + 1)])
    now = np.zeros(world)
    for step in range(hops + 1):
        done = now + products[step]
        now = np.maximum(done, _sent(machine, now, sizes.chunk())) if step < hops else done
    now = np.full(world, now.max())  # between the passes the ranks wait for one another
    for step in range(hops + 1):
        done = now + BACKWARD * products[step]
        travels = (sizes.chunk() if step < hops else 0) + (sizes.gradients() if step else 0)
        now = np.maximum(done, _sent(machine, now, travels)) if travels else done
    return float((_sent(machine, now, sizes.gradients(), -hops) if hops else now).max())


def _sent(machine: Machine, now: np.ndarray, size: int, hop: int = 1) -> np.ndarray:
    """[N]: the time at which each rank has sent so many bytes `hop` further round, and received as many."""
    through = np.maximum(now, np.roll(now, -hop)) + machine.latency + size / machine.bandwidth(len(now), hop)
    return np.maximum(through, np.roll(through, hop))


def all_gather(case: Case, world: int, machine: Machine) -> float:
    """Keys and values come, then the products; in the backward pass the products, then the gradients go.

    A chunk enters a node once, through the connections of all its ranks together, and goes round inside it.
    """
    sizes = case.sizes(world)
    chunk, outside = sizes.chunk(), max(world - machine.node, 0)
    inside = (world - 1) * chunk / machine.within
    sending = max(inside, outside * chunk / (machine.node * machine.between)) + 2 * (world - 1) * machine.latency
    return 2 * sending + (1 + BACKWARD) * float(machine.products(pairs(case, world, "zigzag").sum(1)).max())  # pyright: ignore[reportAttributeAccessIssue]


def ulysses(case: Case, world: int, machine: Machine) -> float | None:
    """Exchange, products of some heads, exchange back, and the same for the gradients. None where heads are too few.

    One message to each other rank for each tensor: query, key, value, output, and lse only in the forward pass.
    """
    if case.key_heads % world:
        return None
    sizes = case.sizes(world)
    inside, outside = min(world, machine.node) - 1, max(world - machine.node, 0)
    seconds = 0.0
    for sent, tensors in zip(traffic.ulysses(sizes), (5, 4), strict=True):
        to_one = sent / (world - 1)
        seconds += max(to_one * inside / machine.within, to_one * outside / machine.between)
        seconds += tensors * (world - 1) * machine.latency
    return seconds + (1 + BACKWARD) * float(machine.products(all_pairs(case), HEADS / world))


def products_alone(case: Case, world: int, machine: Machine) -> float:
    """The products of both passes, divided evenly, without messages: no way can take less."""
    return (1 + BACKWARD) * float(machine.products(all_pairs(case))) / world


def all_pairs(case: Case) -> int:
    """The visible pairs of a head."""
    hidden = 0 if case.window is None else max(case.length - case.window, 0)
    return (case.length * (case.length + 1) - hidden * (hidden + 1)) // 2


WAYS: dict[str, Callable[[Case, int, Machine], float | None]] = {
    "products alone": products_alone,
    "ring, zigzag": lambda *given: ring(*given, layout="zigzag"),
    "ring, contiguous": lambda *given: ring(*given, layout="contiguous"),
    "all-gather": all_gather,
    "Ulysses": ulysses,
}


def hidden(case: Case, machine: Machine) -> float:
    """The number of ranks up to which, by the formula, the products hide a ring between nodes (zigzag, causal)."""
    queries = max(hidden_from(HEADS, case.key_heads, SIZE, SUMS, machine.flops * machine.use, machine.between, 0.5))
    return case.length / queries


def main() -> None:
    """Every way of every case, into the table and the picture."""
    machine = Machine()
    seconds = {case: {way: [run(case, n, machine) for n in RANKS] for way, run in WAYS.items()} for case in CASES}
    bounds = {case: hidden(case, machine) for case in CASES if case.window is None}
    write(OUT, RANKS, seconds, bounds)


if __name__ == "__main__":
    main()
