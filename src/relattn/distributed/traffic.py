"""Traffic: the bytes that one rank sends in a call, as formulas.

A chunk is the keys and values of one rank. With N ranks, and n queries and m keys per rank:

    chunk       c  = B Hk m (D + Dv) e        e bytes per number, as the keys come
    gradients   c' = B Hk m (D + Dv) w        w bytes per number, as sums are taken

    ring        forward  h c                  h hops, see `hops`
                backward h c + (h + 1) c'     0 where h is 0; less where masks hide chunks: `ring_of_keys`
    all_gather  forward  (N - 1) c            backward the same
    ulysses     forward  (N - 1) / N * B (Hq n (D + Dv + Dr) e + Hk m (D + Dv) e + Hq n w)      backward the same

All three also send what every rank needs about all keys (`gathered`), such as key_mask and key_bias. The small vectors
by which the ranks agree are not counted.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from relattn.distributed.parts import Layout, Piece, multiple, pieces


class Traffic(NamedTuple):
    """Bytes that one rank sends."""

    forward: int
    backward: int

    def plus(self, other: Traffic) -> Traffic:
        """Both together."""
        return Traffic(self.forward + other.forward, self.backward + other.backward)


@dataclass(frozen=True)
class Sizes:
    """The numbers of a call that the formulas need.

    world: N. batch: B. query_heads, key_heads: Hq, Hk. queries, keys: n and m, of one rank. width, value_width: D, Dv.
    size: bytes of a number of the query, key and value. sums: bytes of a number in a sum, 4, or 8 for float64.
    """

    world: int
    batch: int
    query_heads: int
    key_heads: int
    queries: int
    keys: int
    width: int
    value_width: int
    size: int
    sums: int

    def chunk(self) -> int:
        """Bytes of a rank's keys and values."""
        return self.keys * self.key() * self.size

    def gradients(self) -> int:
        """Bytes of the gradients of a rank's keys and values, while they add up."""
        return self.keys * self.key() * self.sums

    def key(self) -> int:
        """Numbers of a key and its value, over batch and heads."""
        return self.batch * self.key_heads * (self.width + self.value_width)


def ring(sizes: Sizes, hops: int) -> Traffic:
    """Keys and values are passed on `hops` times. Their gradients are passed on as often, and once more to the rank
    that owns the keys.

    This holds if keys and values both have a gradient.
    """
    return ring_of_keys(sizes, hops * sizes.keys, (hops + 1) * sizes.keys if hops else 0)


def ring_of_keys(sizes: Sizes, chunks: int, sums: int) -> Traffic:
    """So many keys are sent in chunks, with their values, and so many in sums of gradients.

    Where key_mask or segments hide chunks `Needs.sent` has these numbers for all ranks together. A chunk is sent once
    to each rank that may see some of it, and a sum leaves this rank. One more leaves the owner if the next rank is one.
    """
    sent = chunks * sizes.key() * sizes.size
    return Traffic(sent, sent + sums * sizes.key() * sizes.sums)


def all_gather(sizes: Sizes) -> Traffic:
    """Every rank sends its keys and values to all others, and gets their gradients from them."""
    return gathered(sizes.world, sizes.chunk(), differentiable=True)


def gathered(world: int, own: int, *, differentiable: bool) -> Traffic:
    """The bytes for a tensor of `own` bytes, such as key_mask, that every rank sends to all others."""
    sent = (world - 1) * own
    return Traffic(sent, sent if differentiable else 0)


def ulysses(
    sizes: Sizes, *, relative_width: int = 0, output_size: int | None = None, reads_lse: bool = False
) -> Traffic:
    """Queries, keys and values change places for heads; outputs and lse change back.

    relative_width: Dr, the widths of an encoding's own relative queries, added up over the axes; 0 where it has none.
    output_size: bytes of a number of the output if it differs from the inputs, as with sinks; None: as the inputs.
        reads_lse: whether a loss uses lse, of the caller or by sinks. If not, it has no gradient that could be sent.
    """
    rows = sizes.batch * sizes.query_heads * sizes.queries
    output = rows * sizes.value_width * (sizes.size if output_size is None else output_size)
    lse = rows * sizes.sums
    others = rows * (sizes.width + relative_width) * sizes.size + sizes.chunk() + output
    return Traffic(_to_others(sizes.world, others + lse), _to_others(sizes.world, others + (lse if reads_lse else 0)))


def _to_others(world: int, own: int) -> int:
    """The bytes for the others, if so many bytes are cut into one part per rank."""
    return own // world * (world - 1)


def hops(world: int, queries: int, keys: int, lowest: int | None, highest: int | None, layout: Layout) -> int:
    """How many times the ring passes a chunk on: the largest s such that a rank i sees a key of rank (i - s) mod N.

    queries, keys: the numbers that a rank holds. A query sees a key where lowest <= key - query <= highest, counted in
        elements of the whole sequences; None: no limit. The answer is 0 where every rank needs only its own keys.

    Every rank passes a chunk on as often as the one that needs the most. Under a window the zigzag layout still needs N
    - 1 hops: its pieces lie in both directions round the ring, and one direction is the long one.
    """
    furthest = 0
    for rank in range(world):
        for piece in pieces(rank, world, queries, layout):
            for first, last in _ranks_seen(piece, world, keys, lowest, highest, layout):
                source = first if last <= rank else max(first, rank + 1)
                furthest = max(furthest, (rank - source) % world)
        if furthest == world - 1:
            break
    return furthest


def _ranks_seen(
    piece: Piece, world: int, keys: int, lowest: int | None, highest: int | None, layout: Layout
) -> list[tuple[int, int]]:
    """The ranks whose keys some query of the piece sees, as (first, last) of each run of them.

    The visible keys are neighbours, and so are the blocks of keys that hold them. Of the 2 N blocks of the zigzag
    layout rank r holds r and 2 N - 1 - r.
    """
    blocks = multiple(world, layout)
    reversed_limits = lowest is not None and highest is not None and lowest > highest
    if not piece.length or reversed_limits:
        return []
    total = world * keys
    first = 0 if lowest is None else max(piece.start + lowest, 0)
    last = total - 1 if highest is None else min(piece.start + piece.length - 1 + highest, total - 1)
    if first > last:
        return []
    first, last = first * blocks // total, last * blocks // total
    if layout == "contiguous":
        return [(first, last)]
    runs = [(first, min(last, world - 1)), (blocks - 1 - last, blocks - 1 - max(first, world))]
    return [run for run in runs if run[0] <= run[1]]
