"""Where the command writes: results to stdout, progress and errors to stderr; and what an error looks like."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from typing import NoReturn

import typer
from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TaskID,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)
from rich.text import Text

from relattn.cli import REFUSED

EXTRA_OF = dict.fromkeys(("accelerate", "filelock", "matplotlib", "mido", "music21", "transformers"), "lab") | {
    "safetensors": "cli"
}
"""The extra that brings a package."""

# Names of files and data go through as they are: neither markup nor emoji is looked for in them.
out = Console(highlight=False, markup=False, emoji=False)
err = Console(stderr=True, highlight=False, markup=False, emoji=False)


@contextmanager
def one_sentence() -> Iterator[None]:
    """Bad input raised inside becomes `error: <sentence>` and exit code 2; any other error is a bug and stays one."""
    try:
        yield
    except (ValueError, OSError) as error:
        _refuse(str(error))
    except ModuleNotFoundError as error:
        package = (error.name or "").partition(".")[0]
        if package not in EXTRA_OF:
            raise
        extra = EXTRA_OF[package]
        _refuse(
            f"relattn: got a Python without {package}; expected the extra `{extra}`; install it: pip install "
            f"'relattn[{extra}]'"
        )


@contextmanager
def terminated_as_interrupted() -> Iterator[None]:
    """Inside, SIGTERM does what Ctrl-C does: it raises KeyboardInterrupt."""

    def interrupt(signum, frame) -> NoReturn:
        raise KeyboardInterrupt

    former = signal.signal(signal.SIGTERM, interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, former)


def _refuse(text: str) -> NoReturn:
    shown = text.encode(errors="backslashreplace").decode()  # names of files may hold bytes that are no UTF-8
    err.print(Text("error: ", style="bold red") + Text(shown), soft_wrap=True)
    raise typer.Exit(REFUSED)


class Bar:
    """`relattn.support.progress.Progress` as one line at the bottom of the terminal; use it as a context."""

    def __init__(self) -> None:
        self._display = Progress(
            TextColumn("{task.description}", markup=False),
            BarColumn(),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            TimeRemainingColumn(),
            TextColumn("{task.fields[note]}", markup=False),
            console=err,
            transient=True,
        )
        self._task: TaskID | None = None

    def __enter__(self) -> Bar:
        self._display.start()
        return self

    def __exit__(self, *exception: object) -> None:
        self._display.stop()

    def say(self, text: str) -> None:
        """Print a line above the bar."""
        err.print(text, soft_wrap=True)

    def begin(self, label: str, total: int) -> None:
        """Show a new task in place of the one before."""
        if self._task is not None:
            self._display.remove_task(self._task)
        self._task = self._display.add_task(label, total=total, note="")

    def advance(self, done: int, note: str = "") -> None:
        """Move the bar."""
        if self._task is not None:
            self._display.update(self._task, completed=done, note=note)
