"""Backend: what computes the equation."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol, runtime_checkable

from jaxtyping import Float
from torch import Tensor

from relattn.score.problem import Problem


class Backend(Protocol):
    """One way to compute the score equation. It runs a problem exactly, or says why it cannot."""

    name: str

    def reasons(self, problem: Problem) -> Iterable[str]:
        """Why it cannot run `problem`, a sentence each; none when it can. Each is looked for when it is asked for."""
        ...

    def run(self, problem: Problem) -> tuple[Float[Tensor, "B Hq Lq Dv"], Float[Tensor, "B Hq Lq"] | None]:
        """O and, where the problem asks for it, lse: the log of the sum of exp(S) over the keys.

        A row with nothing to attend to gives output 0, lse -inf, and gradient 0.
        """
        ...


@runtime_checkable
class MergingBackend(Backend, Protocol):
    """A backend that computes the gradients of a part of a call: some of the queries and keys of one softmax."""

    def gradients(
        self,
        problem: Problem,
        output: Float[Tensor, "B Hq Lq Dv"],
        lse: Float[Tensor, "B Hq Lq"],
        output_gradient: Float[Tensor, "B Hq Lq Dv"],
        lse_gradient: Float[Tensor, "B Hq Lq"],
        wanted: list[str],
    ) -> dict[str, Tensor]:
        """What the part adds to the gradients that `wanted` names, as in `problem_arguments.tensors_of`.

        output, lse: those of the whole call, over the keys of all parts. A part has no row of weights of its own: its
        weights are exp(S - lse).
        """
        ...
