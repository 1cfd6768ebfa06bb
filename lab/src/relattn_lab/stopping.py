"""Signals that ask long work to stop: the first one lets a step end, and is remembered."""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

from relattn.cli.stopped import stop

STOPPING = (signal.SIGINT, signal.SIGTERM)
ECHO = 0.5
"""Seconds in which a signal may come again without being meant: `timeout` sends it to the process and to its group."""


class StopRequest:
    """Which signal has asked for the end, None as long as none has; and when."""

    signum: int | None = None
    when: float = 0.0


@contextmanager
def first_signal_waits(asked: StopRequest) -> Iterator[None]:
    """Inside, the first SIGINT or SIGTERM is written into `asked`; a second one raises KeyboardInterrupt at once.

    Outside of the main thread, which alone gets signals, there is nothing to wait for. A signal that the process
    ignores stays ignored: a process that a script starts in the background ignores SIGINT.
    """

    def record(signum: int, frame: object) -> None:
        if asked.signum is None:
            asked.signum, asked.when = signum, time.monotonic()
        elif time.monotonic() - asked.when > ECHO:
            stop(signum)

    if threading.current_thread() is not threading.main_thread():
        yield
        return
    handlers = {signum: signal.getsignal(signum) for signum in STOPPING}
    former = {signum: handler for signum, handler in handlers.items() if handler not in (signal.SIG_IGN, None)}
    try:
        for signum in former:
            signal.signal(signum, record)
        yield
    finally:
        for signum, handler in former.items():
            signal.signal(signum, handler)
