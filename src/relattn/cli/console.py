"""Where the command writes: results to stdout, progress and errors to stderr; and what an error looks like."""

from __future__ import annotations

import math
import re
import signal
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from types import MappingProxyType
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
from relattn.cli.stopped import exit_code, stop

LINES = 25
"""At most so many for a task, where there is no terminal: one every four per cent."""
SECONDS = 2.0
"""Between two of them, at least."""

STEERING = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069\ud800-\udfff]")
"""Control characters, those that turn the direction of writing, and surrogates."""

TYPED: ContextVar[Mapping[str, str]] = ContextVar("TYPED", default=MappingProxyType({}))
"""The options of the command that was called, as they are typed, by their names in sentences."""

# Names of files and data are printed as they are: without markup or emoji.
out = Console(highlight=False, markup=False, emoji=False)
err = Console(stderr=True, highlight=False, markup=False, emoji=False)


@contextmanager
def one_sentence() -> Iterator[None]:
    """Bad input raised inside becomes `error: <sentence>` and exit code 2; any other error is a bug and is shown as
    one. Ctrl-C and SIGTERM, where nothing says more of them, become `stopped` and the exit code of their signal.
    """
    try:
        with terminated_as_interrupted():
            yield
    except KeyboardInterrupt as stopped:
        say_stopped(stopped, "stopped")
    except (ValueError, OSError) as error:
        _refuse(_as_typed(str(error)))


@contextmanager
def terminated_as_interrupted() -> Iterator[None]:
    """Inside, SIGTERM does what Ctrl-C does: it raises KeyboardInterrupt, as Terminated."""
    former = signal.signal(signal.SIGTERM, stop)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, former)


def say_stopped(stopped: KeyboardInterrupt, text: str) -> NoReturn:
    """Say what the end means, and end with the exit code of its signal."""
    err.print(text, soft_wrap=True)
    raise typer.Exit(exit_code(stopped)) from None


def visible(text: str) -> str:
    """`text` without what steers a terminal: control characters, but for tabs and the ends of lines, and surrogates
    (bytes in a file's name that are no UTF-8) are escaped.
    """
    return STEERING.sub(lambda found: found.group().encode("unicode_escape").decode(), text.replace("\r\n", "\n"))


def _as_typed(text: str) -> str:
    """The sentence with the options it begins with as they are typed: "top_p: got" becomes "--top-p: got"."""
    names, colon, rest = text.partition(":")
    typed = [TYPED.get().get(name) for name in names.split(", ")]
    return text if None in typed else ", ".join(map(str, typed)) + colon + rest


def _refuse(text: str) -> NoReturn:
    err.print(Text("error: ", style="bold red") + Text(visible(text)), soft_wrap=True)
    raise typer.Exit(REFUSED)


class Bar:
    """The progress of long work as one line at the bottom of the terminal; use it as a context.

    Where stderr is no terminal, a pipe or a log, there are lines in its place: one when a task begins, then one every
    few per cent, with what is left.
    """

    def __init__(self) -> None:
        self._shown = _Moving() if err.is_terminal else Lines(self.say)

    def __enter__(self) -> Bar:
        if isinstance(self._shown, _Moving):
            self._shown._display.start()
        return self

    def __exit__(self, *exception: object) -> None:
        if isinstance(self._shown, _Moving):
            self._shown._display.stop()

    def say(self, text: str) -> None:
        """Print a line above the bar."""
        err.print(visible(text), soft_wrap=True)

    def begin(self, label: str, total: int) -> None:
        """Show a new task in place of the one before."""
        self._shown.begin(label, total)

    def advance(self, done: int, note: str = "") -> None:
        """Move the bar."""
        self._shown.advance(done, note)


class _Moving:
    def __init__(self) -> None:
        label, note = (TextColumn(text, markup=False) for text in ("{task.description}", "{task.fields[note]}"))
        columns = label, BarColumn(), MofNCompleteColumn(), TimeElapsedColumn(), TimeRemainingColumn(), note
        self._display = Progress(*columns, console=err, transient=True)
        self._task: TaskID | None = None
        self._first = True

    def begin(self, label: str, total: int) -> None:
        if self._task is not None:
            self._display.remove_task(self._task)
        self._task, self._first = self._display.add_task(label, total=total, note=""), True

    def advance(self, done: int, note: str) -> None:
        if self._task is None:
            return
        if self._first and done > 1:  # a run that goes on: what was done before took none of this run's time
            self._display.reset(self._task, completed=done, note=note)
        else:
            self._display.update(self._task, completed=done, note=note)
        self._first = False


class Lines:
    """Lines that report the progress of a task: at most LINES of them, at least SECONDS apart.

    write: takes a line. clock: gives seconds.
    """

    def __init__(self, write: Callable[[str], None], clock: Callable[[], float] = time.monotonic):
        self._write, self._clock = write, clock
        self._label, self._total, self._began, self._last, self._told = "", 0, 0.0, 0.0, 0.0
        self._first: int | None = None

    def begin(self, label: str, total: int) -> None:
        """A line for the new task."""
        self._label, self._total, self._told, self._first = label, total, 0.0, None
        self._began = self._last = self._clock()
        self._write(f"{label}: {total} to go")

    def advance(self, done: int, note: str) -> None:
        """A line, where one is due."""
        now, share = self._clock(), done / max(self._total, 1)
        if self._first is None:
            self._first = 0
            if done > 1:  # a run that goes on: what was done before took none of this run's time
                self._first, self._began, self._last, self._told = done, now, now, share * LINES
        if share < self._told / LINES + 1 / LINES or now - self._last < SECONDS:
            return
        self._told, self._last = math.floor(share * LINES), now
        left = (now - self._began) * (self._total - done) / (done - self._first)
        told = f"{self._label}: {done} of {self._total} ({share:.0%}), about {_duration(left)} left"
        self._write(f"{told}, {note}" if note else told)


def _duration(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    if hours:
        return f"{hours} h {minutes:02d} min"
    return f"{minutes} min {rest:02d} s" if minutes else f"{rest} s"
