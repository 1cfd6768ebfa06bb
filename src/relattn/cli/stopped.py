"""The end that a signal asks for, as an exception that knows which one it was."""

from __future__ import annotations

import signal
from typing import NoReturn


class Terminated(KeyboardInterrupt):
    """SIGTERM has asked for the end, as Ctrl-C does by KeyboardInterrupt."""


def stop(signum: int, frame: object = None) -> NoReturn:
    """A handler of signals.

    Raises KeyboardInterrupt: for SIGINT, and as Terminated for SIGTERM.
    """
    raise Terminated if signum == signal.SIGTERM else KeyboardInterrupt


def exit_code(stopped: KeyboardInterrupt) -> int:
    """128 and the signal's number, as shells have it: 143 after SIGTERM, 130 after Ctrl-C."""
    return 128 + (signal.SIGTERM if isinstance(stopped, Terminated) else signal.SIGINT)
