"""The ring: keys and values travel from rank to rank, and every rank adds what its queries see of them.

The forward pass merges the answers over the chunks by lse. The backward pass sends the keys and values round again,
their gradients behind them, and asks a backend for the gradients of each part, given the output and lse of the whole.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor
from torch.autograd.function import once_differentiable

from relattn.autocast import without_autocast
from relattn.backends.base import Backend, MergingBackend
from relattn.backends.problem_arguments import flat, named, problem_of, tensors_of, with_tensors
from relattn.backends.select import BACKENDS, select
from relattn.distributed.group import Group, Passing
from relattn.distributed.layout import Layout, Piece, pieces
from relattn.distributed.merge import Merged
from relattn.distributed.part import part_of, sees
from relattn.distributed.sums import Sums, zeros_like
from relattn.errors import UnsupportedError
from relattn.score.problem import Problem

CHUNK = ("key", "value")
"""What travels."""


@dataclass(frozen=True)
class Ring:
    """What the passes of a ring need beside the tensors.

    group, layout: of the ranks, which hold `keys` keys each. hops: how many times a chunk is passed on. backend: as the
    caller named it. seed: of dropout. arguments: each piece's problem as the operators' arguments, by name.
    """

    group: Group
    layout: Layout
    keys: int
    hops: int
    backend: str
    seed: int | None
    arguments: list[dict[str, Any]]

    def chunk(self, step: int) -> tuple[Piece, ...]:
        """The pieces of keys that are here after so many hops."""
        source = (self.group.rank - step) % self.group.world
        return tuple(
            half
            for piece in pieces(source, self.group.world, self.keys, self.layout)
            for half in _small(piece, self.keys)
        )

    def problems(self, tensors: Sequence[Tensor]) -> list[Problem]:
        """Each piece's problem, with these tensors in the order of `moved`."""
        given, problems = iter(tensors), []
        for arguments in self.arguments:
            held = {name: next(given) for name in moved(arguments)}
            problems.append(problem_of(**with_tensors(arguments, held)).replaced(seed=self.seed))
        return problems


def attend(
    group: Group,
    layout: Layout,
    problems: list[Problem],
    key: Float[Tensor, "B Hk Lk D"],
    value: Float[Tensor, "B Hk Lk Dv"],
    hops: int,
    backend: str,
) -> tuple[Float[Tensor, "B Hq n Dv"], Float[Tensor, "B Hq n"]]:
    """O and lse of the pieces' problems, one after the other; the keys of each are those of all ranks."""
    arguments = [named(flat(problem, None)) for problem in problems]
    ring = Ring(group, layout, key.shape[2], hops, backend, problems[0].seed, arguments)
    tensors = [tensors_of(one)[name] for one in arguments for name in moved(one)]
    return _Ring.apply(ring, key, value, *tensors)  # pyright: ignore[reportReturnType]


def _small(piece: Piece, keys: int) -> Iterator[Piece]:
    """A piece of at most half of a rank's keys, or two: what a part adds to gradients is held beside the sums."""
    if 2 * piece.length <= keys + 1:
        yield piece
    else:
        half = piece.length // 2
        yield Piece(piece.start, piece.local, half)
        yield Piece(piece.start + half, piece.local + half, piece.length - half)


def check(problem: Problem, backend: str) -> None:
    """Raises UnsupportedError: where the backend that the caller named cannot run the parts of a piece's problem.

    Before anything is sent, for a rank that raises while others wait would leave them waiting.
    """
    merging(backend, part_of(problem, slice(0, problem.key.shape[2]), problem.key, problem.value))


def moved(arguments: dict[str, Any]) -> list[str]:
    """The names of a piece's tensors that may have a gradient, less the keys and values, which travel."""
    held = tensors_of(arguments)
    return [name for name, tensor in held.items() if tensor is not None and name not in CHUNK]


def merging(name: str, problem: Problem) -> MergingBackend:
    """The backend that runs a part of a problem: the one called `name`, for "auto" the first that can.

    Raises UnsupportedError: for a backend that cannot compute the gradients of a part.
    """
    if name != "auto":
        return _merging(select(name, problem))
    order: list[Backend] = [BACKENDS["native"], BACKENDS["tiled"]]
    if problem.query.device.type == "cuda":
        order.insert(0, BACKENDS["triton"])
    return _merging(next(backend for backend in order if not any(backend.reasons(problem))))


def _merging(backend: Backend) -> MergingBackend:
    if isinstance(backend, MergingBackend):
        return backend
    usable = [name for name, other in BACKENDS.items() if isinstance(other, MergingBackend)]
    raise UnsupportedError(
        f"backend={backend.name!r} cannot run a ring: it has no gradients of a part of a softmax; "
        f"use {' or '.join(map(repr, usable))}, or rotate='all_gather'"
    )


class _Ring(torch.autograd.Function):
    """O and lse of all pieces, one after the other, by the keys, the values and each piece's tensors."""

    @staticmethod
    def forward(ctx, ring: Ring, key: Tensor, value: Tensor, *tensors: Tensor) -> tuple[Tensor, Tensor]:
        problems = ring.problems(tensors)
        merged = [Merged() for _ in problems]
        chunk = [key, value]
        for step in range(ring.hops + 1):
            coming = ring.group.pass_on(chunk) if step < ring.hops else None
            for number, keys, here in _meetings(ring, problems, step):
                merged[number].add(*_answer(ring, _part(problems[number], keys, here, chunk)))
            if coming is not None:
                chunk = coming.wait()
        output, lse = _joined(problems, merged)
        ctx.save_for_backward(key, value, *tensors, output, lse)
        ctx.ring = ring
        return output, lse

    @staticmethod
    @once_differentiable
    def backward(ctx, output_gradient: Tensor, lse_gradient: Tensor) -> tuple[Any, ...]:  # pyright: ignore[reportIncompatibleMethodOverride]
        key, value, *tensors, output, lse = ctx.saved_tensors
        wanted = ctx.needs_input_grad[1:]
        passes = _Backward(ctx.ring, key, value, tensors, wanted, (output, lse, output_gradient, lse_gradient))
        return None, *passes.run()


class _Backward:
    """The way back: keys and values go round once more, and their gradients behind them, until they are home.

    At most three chunks are held at a time. What the ranks before have summed comes in while the first part is
    multiplied, the next keys and values during the others.
    """

    def __init__(
        self,
        ring: Ring,
        key: Tensor,
        value: Tensor,
        tensors: Sequence[Tensor],
        wanted: Sequence[bool],
        answers: tuple[Tensor, ...],
    ) -> None:
        self.ring, self.problems = ring, ring.problems(tensors)
        self.held: dict[str, Tensor] = {"key": key, "value": value}
        self.answers = [part.split([p.query.shape[2] for p in self.problems], dim=2) for part in answers]
        needed = iter(wanted[2:])
        self.sums = [
            Sums(problem, [name for name in moved(arguments) if next(needed)], moved(arguments))
            for arguments, problem in zip(ring.arguments, self.problems, strict=True)
        ]
        self.travels = [name for name, one in zip(CHUNK, wanted, strict=False) if one]
        self.chunk: list[Tensor] = [key, value]
        self.here: list[Tensor] = []
        self.following: Passing | None = None
        self.coming: Passing | None = None

    def run(self) -> list[Tensor | None]:
        """The gradients by the keys, the values and each piece's tensors; None for what asked for none."""
        ring, held = self.ring, self.held
        self.here = [zeros_like(held[name]) for name in self.travels]
        for step in range(ring.hops + 1):
            meetings = list(_meetings(ring, self.problems, step))
            for count, (number, keys, place) in enumerate(meetings):
                found = self._gradients(number, keys, place)
                if count == 0:
                    self._settle(step)
                for name, total in zip(self.travels, self.here, strict=True):
                    total[:, :, place] += found[name]
                self.sums[number].add(_part(self.problems[number], keys, place, self.chunk), keys, found)
                del found  # before the next part has its own
            if not meetings:
                self._settle(step)
            if self.coming is not None:
                self.chunk, self.coming = self.coming.wait(), None
                self.following, self.here = ring.group.pass_on(self.here), []
        self.chunk = []
        if ring.hops:
            self.here = ring.group.pass_on(self.here, hop=-ring.hops).wait()
        home = dict(zip(self.travels, self.here, strict=True))
        by_chunk = [home[name].to(tensor.dtype) if name in home else None for name, tensor in held.items()]
        return by_chunk + [gradient for one in self.sums for gradient in one.gradients()]

    def _gradients(self, number: int, keys: slice, place: slice) -> dict[str, Tensor]:
        """What some of the keys that are here add, under one piece of the queries."""
        part = _part(self.problems[number], keys, place, self.chunk)
        with without_autocast(part.query):
            backend = merging(self.ring.backend, part)
            output, lse, by_output, by_lse = (answer[number] for answer in self.answers)
            return backend.gradients(part, output, lse, by_output, by_lse, [*self.travels, *self.sums[number].wanted])

    def _settle(self, step: int) -> None:
        """Take in the sums of the ranks before, and send the keys and values on."""
        if self.following is not None:
            self.here, self.following = self.following.wait(), None
        if step < self.ring.hops:
            self.coming = self.ring.group.pass_on(self.chunk)


def _meetings(ring: Ring, problems: list[Problem], step: int) -> Iterator[tuple[int, slice, slice]]:
    """(number of a problem, keys that its queries see, where the chunk that is here holds them)."""
    for number, problem in enumerate(problems):
        for piece in ring.chunk(step):
            if sees(problem, piece.there()):
                yield number, piece.there(), piece.here()


def _part(problem: Problem, keys: slice, here: slice, chunk: Sequence[Tensor]) -> Problem:
    key, value = chunk
    return part_of(problem, keys, key[:, :, here], value[:, :, here])


def _answer(ring: Ring, part: Problem) -> tuple[Tensor, Tensor]:
    """O and lse over a part of the keys, not rounded."""
    exact = part.replaced(output_dtype=part.score_dtype())
    with without_autocast(part.query):
        output, lse = merging(ring.backend, part).run(exact)
    assert lse is not None
    return output, lse


def _joined(problems: list[Problem], merged: list[Merged]) -> tuple[Tensor, Tensor]:
    """The answers of all pieces in one, rounded; those of no key where there was none."""
    first = problems[0]
    b, heads, _, _ = first.query.shape
    length, width = sum(problem.query.shape[2] for problem in problems), first.value.shape[3]
    output = first.query.new_zeros(b, heads, length, width, dtype=first.output_dtype)
    lse = first.query.new_full((b, heads, length), -torch.inf, dtype=first.score_dtype())
    start = 0
    for problem, one in zip(problems, merged, strict=True):
        place = slice(start, start + problem.query.shape[2])
        start = place.stop
        if one.output is not None and one.lse is not None:
            output[:, :, place], lse[:, :, place] = one.output, one.lse
            one.output = None  # its memory is free for the next
    return output, lse
