"""The ring's way back: keys and values go round once more, and their gradients follow them to the rank that owns them.

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
from relattn.distributed.ring_schedule import CHUNK, Meeting, RingSchedule, part, tokens_of_share
from relattn.distributed.sums import Sums, zeros_like
from relattn.equation.problem import Differentiable


class Backward:
    """A rank's sums of gradients, and the tensors on their way.

    A chunk is the data that travels in a round. At most six chunks are held: the keys and values that are here, the
    gradients that a part adds, the sums that arrive, the sums that go on, and the last round's sums for the ranks that
    own the keys, sent and received. The sums of earlier ranks arrive while the first part is computed, the next keys
    and values during the others.
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
        travels = [name for name, one in zip(CHUNK, needs_grad, strict=False) if one]
        self.home = {
            name: torch.empty_like(tensor, memory_format=torch.contiguous_format)
            for name, tensor in zip(CHUNK, self.own, strict=True)
            if name in travels
        }
        self.chunk: list[Tensor] = []
        self.here: list[Tensor] = []
        self.following: Passing | None = None
        self.coming: Passing | None = None
        self.going: tuple[tuple[slice, ...], Passing] | None = None

    def run(self) -> list[Tensor | None]:
        """The gradients by the keys, the values and each piece's tensors; None where no gradient is wanted."""
        for share in self.ring.rounds():
            self._go_round(share)
            self._arrive()
            if self.ring.hops:
                self.going = share, self.ring.group.pass_on(self.here, hop=-self.ring.hops)
            else:
                self._store(share, self.here)
            self.here = []
        self._arrive()
        return [self.home.get(name) for name in CHUNK] + [gradient for one in self.sums for gradient in one.gradients()]

    def _go_round(self, share: tuple[slice, ...]) -> None:
        """One round. At its end the sums of the last rank's keys are here."""
        ring = self.ring
        self.chunk = [tokens_of_share(tensor, share) for tensor in self.own]
        self.here = [zeros_like(tensor) for name, tensor in zip(CHUNK, self.chunk, strict=True) if name in self.home]
        for step in range(ring.hops + 1):
            settled = False
            for meeting in ring.meetings(self.problems, share, step):
                gradients = self._gradients(meeting)
                if not settled:
                    self._settle(step)
                    settled = True
                for name, total in zip(self.home, self.here, strict=True):
                    total[:, :, meeting.place] += getattr(gradients, name)
                del gradients  # before the next part has its own
            if not settled:
                self._settle(step)
            if self.coming is not None:
                self.chunk, self.coming = self.coming.wait(), None
                self.following, self.here = ring.group.pass_on(self.here), []

    def _gradients(self, meeting: Meeting) -> Differentiable[Tensor | None]:
        """The gradients of a meeting; those of the queries' side are added up."""
        problem = part(self.problems[meeting.number], meeting, self.chunk)
        sums = self.sums[meeting.number]
        with without_autocast(problem.query):
            answers = Answers(*(of[meeting.number][:, :, meeting.queries] for of in self.answers))
            wanted = sums.wanted._replace(**dict.fromkeys(self.home, True))
            gradients = self.ring.backend.gradients(problem, answers, wanted)
        sums.add(problem, meeting.queries, meeting.keys, gradients)
        return gradients

    def _settle(self, step: int) -> None:
        """Receive the sums of earlier ranks, and send the keys and values on."""
        if self.following is not None:
            self.here, self.following = self.following.wait(), None
        if step < self.ring.hops:
            self.coming = self.ring.group.pass_on(self.chunk)

    def _arrive(self) -> None:
        """Receive the last sums of this rank's own keys."""
        if self.going is not None:
            (share, passing), self.going = self.going, None
            self._store(share, passing.wait())

    def _store(self, share: tuple[slice, ...], sums: list[Tensor]) -> None:
        """Copy them to the places of these keys."""
        lengths = [place.stop - place.start for place in share]
        for home, one in zip(self.home.values(), sums, strict=True):
            for place, of_piece in zip(share, one.split(lengths, 2), strict=True):
                home[:, :, place] = of_piece
