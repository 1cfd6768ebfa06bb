"""Backend: the interface of the code that computes the equation."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Protocol, runtime_checkable

from jaxtyping import Float
from torch import Tensor

from relattn.backends.problem_operator import Answers, Forward
from relattn.equation.problem import Differentiable, Problem


class Backend(Protocol):
    """One way to compute the score equation. It runs a problem exactly, or says why it cannot."""

    name: str

    def reasons(self, problem: Problem) -> Iterable[str]:
        """Why it cannot run `problem`, one sentence per reason; none when it can. Reasons are checked one by one, on
        demand.
        """
        ...

    def run(self, problem: Problem) -> tuple[Float[Tensor, "B Hq Lq Dv"], Float[Tensor, "B Hq Lq"] | None]:
        """O and, where the problem asks for it, lse: the log of the sum of exp(S) over the keys.

        A row with nothing to attend to gives output 0, lse -inf, and gradient 0.
        """
        ...


@runtime_checkable
class MergingBackend(Backend, Protocol):
    """A backend that can compute a part of a call: some of the queries and keys of one softmax.

    log_base: log of the base in which it holds maximum and total.
    """

    log_base: float

    def part(self, problem: Problem) -> Forward:
        """The part's own answers."""
        ...

    def gradients(
        self, problem: Problem, answers: Answers, wanted: Differentiable[bool]
    ) -> Differentiable[Tensor | None]:
        """The part's share of the wanted gradients, the others None.

        answers: those of the whole call, over the keys of all parts. A part has no softmax of its own: its weights are
        exp(S - maximum) / total.
        """
        ...


@runtime_checkable
class SteppingBackend(Backend, Protocol):
    """A backend that can do for few queries, once, what does not depend on the number of keys beside them."""

    def stepping(self, problem: Problem) -> Callable[..., Float[Tensor, "B Hq Lq Dv"]] | None:
        """O of the positions, of q, k, v and r, and of the four tables of the sequence, None where absent; None where
        there is no such way.

        problem: one without masks but limits, which asks for no gradient. The function takes what has its metadata, but
        any number of keys and rows, and strides of k and v but the last.
        """
        ...


@runtime_checkable
class PreparingBackend(Backend, Protocol):
    """A backend that can do for a problem without masks but limits, once, what depends on its metadata alone."""

    def prepared(self, problem: Problem, starts: Sequence[int]) -> Callable[..., Float[Tensor, "B Hq Lq Dv"]] | None:
        """O of q, k, v, r and the four tables of the sequence, None where absent; None where there is no such way.

        The function takes tensors of the problem's metadata, but whole tables. starts: where the problem's rows of each
        begin.
        """
        ...
