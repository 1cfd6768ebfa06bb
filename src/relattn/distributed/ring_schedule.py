"""The schedule of the ring: which rank holds which keys at what time, as they travel round the ring.

In each round every rank gives a share of its keys and values, and this share goes round once. So a rank never holds
much that belongs to others.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import NamedTuple

import torch
from torch import Tensor

from relattn.backends.base import MergingBackend
from relattn.backends.problem_arguments import Arguments, problem_of
from relattn.distributed.group import Group
from relattn.distributed.layout import Layout, pieces
from relattn.distributed.part import part_of, sees
from relattn.equation.key_bias import lowered
from relattn.equation.problem import Problem

CHUNK = ("key", "value")
"""The tensors that travel."""
SHARES = 16
"""A part has at most this share of a rank's queries, and a round this share of its keys. It bounds the extra memory."""
FEWEST = 1024
"""Or this many, if that is more: smaller parts take longer to send and to start than to multiply."""


class Meeting(NamedTuple):
    """Some queries of the problem with that number, and keys for them, which lie at `place` in the chunk."""

    number: int
    queries: slice
    keys: slice
    place: slice


@dataclass(frozen=True)
class RingSchedule:
    """What the passes of a ring need beside the tensors.

    group, layout: the ranks and their layout; each rank holds `keys` keys. hops: how many times a chunk is passed on.
        backend: of all parts, for each holds maxima and totals in its own base. seed: the seed of dropout. arguments:
        each piece's problem as an operator's arguments.
    """

    group: Group
    layout: Layout
    keys: int
    hops: int
    backend: MergingBackend
    seed: int | None
    arguments: list[Arguments]

    def by_piece(self, rows: Tensor) -> tuple[Tensor, ...]:
        """What belongs to the queries of each piece."""
        return rows.split([arguments.tensors[0].shape[2] for arguments in self.arguments], dim=2)

    def rounds(self) -> list[tuple[slice, ...]]:
        """For each round, the keys that a rank gives from each of its pieces."""
        own = pieces(self.group.rank, self.group.world, self.keys, self.layout)
        size = max(_share(self.keys) // len(own), 1)
        return [
            tuple(slice(piece.local + start, piece.local + min(start + size, piece.length)) for piece in own)
            for start in range(0, own[0].length, size)
        ]

    def chunk(self, share: tuple[slice, ...], step: int) -> Iterator[tuple[slice, slice]]:
        """(keys, their places in the chunk) of the chunk that is here after so many hops of a round."""
        source, place = (self.group.rank - step) % self.group.world, 0
        for piece, part in zip(pieces(source, self.group.world, self.keys, self.layout), share, strict=True):
            first, count = piece.start + part.start - piece.local, part.stop - part.start
            yield slice(first, first + count), slice(place, place + count)
            place += count

    def meetings(self, problems: list[Problem], share: tuple[slice, ...], step: int) -> Iterator[Meeting]:
        """Which queries meet which keys after so many hops of a round."""
        for number, problem in enumerate(problems):
            for queries in self.shares(problem):
                for keys, place in self.chunk(share, step):
                    if sees(problem, queries, keys):
                        yield Meeting(number, queries, keys, place)

    def shares(self, problem: Problem) -> Iterator[slice]:
        """The queries of a problem, one share at a time."""
        length = problem.query.shape[2]
        size = _share(length * len(self.arguments))
        return (slice(start, min(start + size, length)) for start in range(0, length, size))

    def problems(self, tensors: Sequence[Tensor]) -> list[Problem]:
        """Each piece's problem, with these tensors, those of one piece after the other."""
        values, problems = iter(tensors), []
        for arguments in self.arguments:
            problem, _ = problem_of(list(islice(values, len(arguments.tensors))), *arguments[1:])
            problem = problem.replace(seed=self.seed)
            key_shift = None if problem.key_bias is None else lowered(problem)[1]  # once for all parts
            problems.append(problem.replace(key_shift=key_shift))
        return problems


def part(problem: Problem, meeting: Meeting, chunk: Sequence[Tensor]) -> Problem:
    """The problem of a meeting, with keys from the chunk."""
    key, value = (tensor[:, :, meeting.place] for tensor in chunk)
    return part_of(problem, meeting.queries, meeting.keys, key, value)


def tokens_of_share(tensor: Tensor, share: tuple[slice, ...]) -> Tensor:
    """The keys or values that this rank gives in a round."""
    return torch.cat([tensor[:, :, place] for place in share], 2)


def _share(length: int) -> int:
    return max(-(-length // SHARES), FEWEST)
