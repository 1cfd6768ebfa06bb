"""The schedule of the ring: which rank holds which keys at what time, as they travel round the ring.

In each round every rank gives a share of its keys and values, and this share goes to the ranks that need it (`needs`).
So a rank never holds much that belongs to others.
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
from relattn.distributed.group import Group, Passing
from relattn.distributed.needs import Needs
from relattn.distributed.parts import Layout, Piece, piece_numbers, pieces
from relattn.equation.key_bias import lowered
from relattn.equation.part import part_of
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

    group, layout: the ranks and their layout; each rank holds `keys` keys. needs: who needs whose keys. visible:
        `visible_parts`, as lists. backend: of all parts, for each holds maxima and totals in its own base. seed: the
        seed of dropout. arguments: each piece's problem as an operator's arguments.
    """

    group: Group
    layout: Layout
    keys: int
    needs: Needs
    visible: list[list[list[list[bool]]]]
    backend: MergingBackend
    seed: int | None
    arguments: list[Arguments]

    def by_piece(self, rows: Tensor) -> tuple[Tensor, ...]:
        """What belongs to the queries of each piece."""
        return rows.split([arguments.tensors[0].shape[2] for arguments in self.arguments], dim=2)

    def rounds(self) -> list[tuple[slice, ...]]:
        """For each round, the keys that this rank gives from each of its pieces."""
        return rounds(pieces(self.group.rank, self.group.world, self.keys, self.layout))

    def meetings(self, number: int, share: tuple[slice, ...], step: int) -> Iterator[Meeting]:
        """Which queries meet which keys at a step of the round of that number."""
        source = (self.group.rank - step) % self.group.world
        chunk = list(self._chunk(source, share))
        numbers = piece_numbers(source, self.group.world, self.layout)
        for piece, visible in enumerate(self.visible):
            for queries, of_share in zip(self._shares(piece), visible, strict=True):
                for (keys, place), given in zip(chunk, numbers, strict=True):
                    if of_share[given][number]:
                        yield Meeting(piece, queries, keys, place)

    def pass_chunk(
        self, number: int, share: tuple[slice, ...], step: int, own: Sequence[Tensor], here: list[Tensor]
    ) -> Passing:
        """Send what others need for their next step, and receive what this rank needs for its own.

        own: all keys and values of this rank. here: the chunk that it computes with.
        """
        on, direct, source = self.needs.chunk_messages(self.group.rank, step, number)
        sent = [(1, here)] if on else []
        if direct is not None:
            sent.append((direct, [tokens_of_share(tensor, share) for tensor in own]))
        place: list[Tensor] = []
        if source is not None:
            like = (like_share(tensor, share) for tensor in own)
            place = [torch.empty_like(tensor, memory_format=torch.contiguous_format) for tensor in like]
        return self.group.pass_on(sent, [(source or 0, place)])

    def _chunk(self, source: int, share: tuple[slice, ...]) -> Iterator[tuple[slice, slice]]:
        """(keys, their places in the chunk) of what that rank gives in a round."""
        place = 0
        for piece, part in zip(pieces(source, self.group.world, self.keys, self.layout), share, strict=True):
            first, count = piece.start + part.start - piece.local, part.stop - part.start
            yield slice(first, first + count), slice(place, place + count)
            place += count

    def _shares(self, piece: int) -> Iterator[slice]:
        """The queries of a piece, one share at a time."""
        length = self.arguments[piece].tensors[0].shape[2]
        size = size_of_queries(length * len(self.arguments))
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


def like_share(tensor: Tensor, share: tuple[slice, ...]) -> Tensor:
    """Keys or values in the shape of those that a rank gives in a round."""
    return tensor[:, :, : sum(place.stop - place.start for place in share)]


def rounds(own: Sequence[Piece]) -> list[tuple[slice, ...]]:
    """For each round, the keys that a rank with these pieces gives from each of them."""
    length, size = own[0].length, size_of_keys(len(own) * own[0].length, len(own))
    return [
        tuple(slice(piece.local + start, piece.local + min(start + size, length)) for piece in own)
        for start in range(0, length, size)
    ]


def size_of_queries(length: int) -> int:
    """The queries of a part, if a rank has so many."""
    return max(-(-length // SHARES), FEWEST)


def size_of_keys(length: int, pieces: int) -> int:
    """The keys that a rank gives from each of its pieces in a round, if it has so many."""
    return max(size_of_queries(length) // pieces, 1)
