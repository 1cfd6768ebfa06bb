"""Needs: which rank needs the keys and values of which other, and by which messages the ring brings them.

In a round every rank gives a chunk. A rank at distance d needs the chunk at step d. It comes from the neighbour before
it if this one needed the chunk, too, else from the rank that owns it. So a chunk is sent once to each rank that needs
it. Where all ranks need all chunks, each goes from neighbour to neighbour.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property, reduce
from operator import or_

import torch

ALL = -1
"""The bits of all rounds."""


@dataclass(frozen=True)
class Needs:
    """rows[rank][d]: bit t is set where the rank needs what rank - d gives in round t. At d = 0 all bits are set."""

    rows: Sequence[Sequence[int]]

    @classmethod
    def within(cls, world: int, hops: int) -> Needs:
        """Every rank needs what the `hops` ranks before it give."""
        return cls([[ALL] * (hops + 1) + [0] * (world - 1 - hops)] * world)

    def has(self, rank: int, distance: int, number: int) -> bool:
        """Whether the rank has the chunk of rank - distance in the round of that number."""
        world = len(self.rows)
        return distance < world and bool(self.rows[rank % world][distance] >> number & 1)

    def steps(self, number: int) -> int:
        """The steps of a round, the first of which is that of the ranks' own keys."""
        return 1 + max(distance for distance, rounds in enumerate(self._of_any_rank) if rounds >> number & 1)

    def chunk_messages(self, rank: int, step: int, number: int) -> tuple[bool, int | None, int | None]:
        """What a rank sends and gets while it computes a step: whether it sends the chunk that is here to the next
        rank; how far it sends its own; from how far back the next chunk comes. None: not at all.
        """
        next_step = step + 1
        on = self.has(rank, step, number) and self.has(rank + 1, next_step, number)
        direct = self.has(rank + next_step, next_step, number) and not self.has(rank + step, step, number)
        source = None
        if self.has(rank, next_step, number):
            source = 1 if self.has(rank - 1, step, number) else next_step
        return on, next_step if direct else None, source

    def sum_messages(self, rank: int, step: int, number: int) -> tuple[int | None, bool, bool]:
        """What a rank sends and gets after a step of the way back: how far it sends its sums, 0 to itself; whether the
        next sums come from the rank before it; whether those of its own keys come back from the rank at this step.
        """
        to = None
        if self.has(rank, step, number):
            to = 1 if self.has(rank + 1, step + 1, number) else -step
        follows = self.has(rank - 1, step, number) and self.has(rank, step + 1, number)
        at_step = step > 0 and self.has(rank + step, step, number)
        return to, follows, at_step and not self.has(rank + step + 1, step + 1, number)

    def sent(self, lengths: Sequence[int]) -> tuple[int, int]:
        """The numbers of keys that all ranks together send: with their values, and as sums of gradients.

        lengths: the keys of each round's chunk.
        """
        rows = torch.tensor(self.rows)

        def keys(first: int, end: int) -> int:
            bits = rows[:, first:end]
            return sum(int((bits >> number & 1).sum()) * length for number, length in enumerate(lengths))

        chunks = keys(1, len(rows))
        return chunks, chunks + keys(1, 2)

    @cached_property
    def _of_any_rank(self) -> list[int]:
        return [reduce(or_, rounds) for rounds in zip(*self.rows, strict=True)]
