"""The errors and the warning that relattn adds to Python's own, and the sentence for an extra that is not installed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence


class ShapeError(ValueError):
    """An argument's rank, size or head count does not fit the others; the message names both shapes."""


class UnsupportedError(RuntimeError):
    """A request is well formed, but the named backend (or every backend) cannot serve it.

    message: what cannot be served, in one sentence.
    reasons: the name of each asked backend, and sentences that say why it cannot. Empty where the request itself has no
        defined meaning.
    """

    def __init__(self, message: str, reasons: Mapping[str, Sequence[str]] | None = None) -> None:
        super().__init__(message)
        self.reasons: dict[str, list[str]] = {name: list(why) for name, why in (reasons or {}).items()}


class RelattnWarning(UserWarning):
    """Something runs, and its user should know what of it is slower or less tried than it could be."""


def not_installed(package: str, extra: str) -> ModuleNotFoundError:
    """The error of `import relattn.<extra>` where the package that it needs is missing."""
    return ModuleNotFoundError(
        f"relattn.{extra}: {package} is not installed; install it with pip install '.[{extra}]' in a clone of relattn",
        name=package,
    )
