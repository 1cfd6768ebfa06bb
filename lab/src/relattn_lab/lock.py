"""One process at a time in a folder."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from filelock import FileLock, Timeout

from relattn.cli.files import explain_write_errors
from relattn_lab.support.files import check_folder

LOCK = ".lock"


@contextmanager
def exclusive_folder(out: Path) -> Iterator[None]:
    """Inside, no other process works in `out`. The lock dies with its process, however that ends.

    The folder is made where it is not there yet, and removed again where nothing was written into it.

    Raises ValueError, FileExistsError: as `check_folder`; BlockingIOError: when another process is at work there.
    """
    check_folder("out", out)
    made = [folder for folder in (out, *out.parents) if not folder.exists()]
    lock = FileLock(out / LOCK, fallback_to_soft=False)  # a soft lock would outlive its process
    try:
        with explain_write_errors(out):
            out.mkdir(parents=True, exist_ok=True)
            lock.acquire(timeout=0)
    except Timeout:
        raise BlockingIOError(
            f"out: got {out}, where another process is at work; expected a folder for this one alone; "
            "wait for the other to end, or choose another --out"
        ) from None
    try:
        yield
    finally:
        # removed while it is held: a process that waits for it finds the file gone, and makes another
        (out / LOCK).unlink(missing_ok=True)
        lock.release()
        with suppress(OSError):
            for folder in made:
                folder.rmdir()
