"""The ring's way back: keys and values travel once more, and their gradients follow them and return to their owner.

A backend gives the gradients of each part, from the answers of the whole.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import islice

import torch
from torch import Tensor

from relattn.backends.problem_operator import Answers
from relattn.checks.autocast import without_autocast
from relattn.distributed.group import Passing
from relattn.distributed.ring_schedule import CHUNK, Meeting, RingSchedule, like_share, part, tokens_of_share
from relattn.equation.part import part_of
from relattn.equation.problem import Differentiable, Gradients, Problem
from relattn.equation.tables import wide


class Backward:
    """A rank's sums of gradients, and the tensors on their way.

    A chunk is the data that travels in a round. Six chunks are held at most: the keys and values that are here, the
    gradients that a part adds, the sums that arrive, the sums that go on, and the sums for the ranks that own the keys,
    sent and received. There is one more while a rank sends its own keys and values to one that is not the next. Sums
    arrive while the first part is computed, the next keys and values during the others.
    """

    def __init__(
        self,
        ring: RingSchedule,
        key: Tensor,
        value: Tensor,
        tensors: Sequence[Tensor],
        needs_grad: Sequence[bool],
        answers: Answers,
    ) -> None:
        self.ring, self.problems = ring, ring.problems(tensors)
        self.own = (key, value)
        self.answers = [ring.by_piece(answer) for answer in answers]
        needs = iter(needs_grad[2:])
        self.sums = [
            Sums(problem, list(islice(needs, len(arguments.tensors))))
            for arguments, problem in zip(ring.arguments, self.problems, strict=True)
        ]
        self.home = {
            name: torch.empty_like(tensor, memory_format=torch.contiguous_format)
            for name, tensor, travels in zip(CHUNK, self.own, needs_grad[:2], strict=True)
            if travels
        }
        self.here: list[Tensor] = []
        self.owned: list[Tensor] = []
        self.share: tuple[slice, ...] = ()
        self.following: Passing | None = None

    def run(self) -> list[Tensor | None]:
        """The gradients by the keys, the values and each piece's tensors; None where no gradient is wanted."""
        for number, share in enumerate(self.ring.rounds()):
            self._go_round(number, share)
        self._arrive()
        self._store()
        return [self.home.get(name) for name in CHUNK] + [gradient for one in self.sums for gradient in one.gradients()]

    def _go_round(self, number: int, share: tuple[slice, ...]) -> None:
        """One round. At its end the sums of the last step are on their way."""
        chunk = [tokens_of_share(tensor, share) for tensor in self.own]
        for step in range(self.ring.needs.steps(number)):
            coming: Passing | None = None
            for meeting in self.ring.meetings(number, share, step):
                gradients = self._gradients(meeting, chunk)
                if coming is None:
                    coming = self._settle(number, share, step, chunk)
                for name, total in zip(self.home, self.here, strict=True):
                    total[:, :, meeting.place] += getattr(gradients, name)
                del gradients  # before the next part has its own
            if coming is None:
                coming = self._settle(number, share, step, chunk)
            (chunk,) = coming.wait()
            self._pass_sums(number, step)

    def _gradients(self, meeting: Meeting, chunk: list[Tensor]) -> Gradients:
        """The gradients of a meeting; those of the queries' side are added up."""
        problem = part(self.problems[meeting.number], meeting, chunk)
        sums = self.sums[meeting.number]
        with without_autocast(problem.query):
            answers = Answers(*(of[meeting.number][:, :, meeting.queries] for of in self.answers))
            wanted = sums.wanted._replace(**dict.fromkeys(self.home, True))
            gradients = self.ring.backend.gradients(problem, answers, wanted)
        sums.add(meeting.queries, meeting.keys, gradients)
        return gradients

    def _settle(self, number: int, share: tuple[slice, ...], step: int, chunk: list[Tensor]) -> Passing:
        """Receive the sums of earlier ranks, and send keys and values on."""
        self.here = self._arrive()
        if step == 0:
            self._store()
            self.share = share
        if not self.here and self.ring.needs.has(self.ring.group.rank, step, number):
            self.here = self._zeros()
        return self.ring.pass_chunk(number, share, step, self.own, chunk)

    def _pass_sums(self, number: int, step: int) -> None:
        """Send the sums that are here to the next rank that has the chunk, or home."""
        to, follows, returns = self.ring.needs.sum_messages(self.ring.group.rank, step, number)
        if to == 0:
            self._add_owned(self.here)
        places = [(1, self._zeros() if follows else []), (-step, self._zeros() if returns else [])]
        self.following = self.ring.group.pass_on([(to, self.here)] if to else [], places)
        self.here = []

    def _zeros(self) -> list[Tensor]:
        return [zeros_like(like_share(tensor, self.share)) for tensor in self.home.values()]

    def _arrive(self) -> list[Tensor]:
        """The sums that follow the chunk. Those of this rank's own keys are added up."""
        if self.following is None:
            return []
        (following, returned), self.following = self.following.wait(), None
        self._add_owned(returned)
        return following

    def _add_owned(self, sums: list[Tensor]) -> None:
        if self.owned:
            for total, one in zip(self.owned, sums, strict=False):
                total += one
        else:
            self.owned = sums

    def _store(self) -> None:
        """Copy a round's sums of this rank's own keys to the places of these keys."""
        lengths = [place.stop - place.start for place in self.share]
        for home, one in zip(self.home.values(), self.owned, strict=False):
            for place, of_piece in zip(self.share, one.split(lengths, 2), strict=True):
                home[:, :, place] = of_piece
        self.owned = []


def zeros_like(tensor: Tensor) -> Tensor:
    """The tensor in which a gradient adds up, in the dtype of the scores."""
    dtype = torch.float64 if tensor.dtype == torch.float64 else torch.float32
    return torch.zeros(tensor.shape, dtype=dtype, device=tensor.device)


class Sums:
    """The gradients of a piece's tensors that do not travel; needed: for which of its operator's tensors."""

    def __init__(self, problem: Problem, needed: Sequence[bool]) -> None:
        self.problem, asked = problem, iter(needed)
        wanted = Differentiable.of([tensor is not None and next(asked) for tensor in problem.leaves()])
        self.wanted = wanted._replace(key=False, value=False)
        self.sums = [
            zeros_like(tensor) if one and tensor is not None else None
            for one, tensor in zip(self.wanted.leaves(), problem.leaves(), strict=True)
        ]
        self.whole = problem.with_leaves(self.sums)
        self.others = len(list(asked))

    def add(self, queries: slice, keys: slice, gradients: Gradients) -> None:
        """Add the gradients of the part with these queries and keys."""
        places = part_of(self.whole, queries, keys, self.whole.key, self.whole.value)
        for one, place, gradient in zip(self.wanted.leaves(), places.leaves(), gradients.leaves(), strict=True):
            if one and place is not None and gradient is not None:
                place.add_(wide(gradient))

    def gradients(self) -> list[Tensor | None]:
        """The gradients of the operator's tensors; None where none is needed."""
        pairs = zip(self.sums, self.problem.leaves(), strict=True)
        found = [None if one is None else one.to(tensor.dtype) for one, tensor in pairs if tensor is not None]
        return [*found, *[None] * self.others]
