"""The two kinds of error that relattn adds to Python's own, and the sentence for an extra that is not installed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence


class ShapeError(ValueError):
    """An argument's rank, size or head count does not fit the others; the message names both shapes."""


class UnsupportedError(RuntimeError):
    """A request that is well formed, but that the named backend (or any backend) cannot serve.

    `reasons` maps the name of each backend that was asked to the sentences that say why it cannot; it is empty where
    the request itself has no defined meaning.
    """

    def __init__(self, message: str, reasons: Mapping[str, Sequence[str]] | None = None) -> None:
        super().__init__(message)
        self.reasons: dict[str, list[str]] = {name: list(why) for name, why in (reasons or {}).items()}


def not_installed(package: str, extra: str) -> ModuleNotFoundError:
    """The error of `import relattn.<extra>` where the package that it stands on is missing."""
    return ModuleNotFoundError(
        f"relattn.{extra}: {package} is not installed; install it with pip install 'relattn[{extra}]'", name=package
    )
