"""Which backend runs a problem: by name, or by what "auto" prefers."""

from __future__ import annotations

from dataclasses import dataclass

from relattn.arguments import check_choice
from relattn.backends.base import Backend
from relattn.backends.dense import DenseBackend
from relattn.backends.reference import ReferenceBackend
from relattn.backends.sdpa import SdpaBackend
from relattn.backends.tiled import TiledBackend
from relattn.errors import UnsupportedError
from relattn.score.problem import Problem

BACKENDS: dict[str, Backend] = {
    backend.name: backend for backend in (SdpaBackend(), DenseBackend(), TiledBackend(), ReferenceBackend())
}
"""Every backend by name, in the order in which "auto" prefers them."""


@dataclass(frozen=True)
class Explanation:
    """What `explain` answers: the backend that runs the problem, and for each of the others why it does not.

    chosen: a backend's name. others: name -> the reasons, a sentence each.
    """

    chosen: str
    others: dict[str, list[str]]

    def __str__(self) -> str:
        lines = [f"{self.chosen}: runs it"]
        return "\n".join(lines + [f"{name}: {'; '.join(reasons)}" for name, reasons in self.others.items()])


def select(name: str, problem: Problem) -> Backend:
    """The backend called `name`, or the first of BACKENDS that can run the problem for "auto".

    Raises ValueError for a name that no backend has, UnsupportedError, with its reasons, for one that cannot run this.
    """
    check_backend(name)
    if name == "auto":
        return next(backend for backend in BACKENDS.values() if not backend.reasons(problem))
    reasons = BACKENDS[name].reasons(problem)
    if reasons:
        usable = [other for other, backend in BACKENDS.items() if not backend.reasons(problem)]
        raise UnsupportedError(
            f"backend={name!r} cannot run this: {'; '.join(reasons)}; use {' or '.join(map(repr, usable))}",
            {name: reasons},
        )
    return BACKENDS[name]


def explain_choice(name: str, problem: Problem) -> Explanation:
    """Which backend `name` (a backend, or "auto") takes, and why not each of the others."""
    chosen = select(name, problem).name
    others = {}
    for other, backend in BACKENDS.items():
        if other != chosen:
            passed_over = f"usable, but {chosen} was named" if name != "auto" else f"usable, but {chosen} comes first"
            others[other] = backend.reasons(problem) or [passed_over]
    return Explanation(chosen, others)


def check_backend(name: str) -> None:
    """`name` is "auto" or a backend's."""
    check_choice("backend", name, ("auto", *BACKENDS))
