"""Backend: what computes the equation."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol

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
