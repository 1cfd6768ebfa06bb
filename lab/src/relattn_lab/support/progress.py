"""Messages of long work about its progress; the command line draws them."""

from __future__ import annotations

from typing import Protocol


class Progress(Protocol):
    """A listener. `say` passes on a sentence. `begin` starts a task and `advance` moves it, until the next `begin`."""

    def say(self, text: str) -> None:
        """One finished thing, for the record."""
        ...

    def begin(self, label: str, total: int) -> None:
        """A task of `total` units starts; the one before is over."""
        ...

    def advance(self, done: int, note: str = "") -> None:
        """`done` units of the task are now done in all; `note` is its latest figure."""
        ...


class Silent:
    """A listener that does nothing."""

    def say(self, text: str) -> None:
        """Nothing."""

    def begin(self, label: str, total: int) -> None:
        """Nothing."""

    def advance(self, done: int, note: str = "") -> None:
        """Nothing."""
