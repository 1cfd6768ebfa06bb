"""What a run writes on the way: one sentence where it cannot be written, and how to go on then."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from safetensors import SafetensorError

from relattn.cli.files import reason_of

WRITE_ERRORS = (OSError, RuntimeError, SafetensorError)
"""What Python, torch and safetensors raise where the disk is full or the folder may not be written to."""


@contextmanager
def explain_unwritten(what: str, folder: Path) -> Iterator[None]:
    """`what` is written into `folder` inside, and nothing else is done there.

    Raises OSError: when it cannot be written; what was done before stays as it is.
    """
    try:
        yield
    except WRITE_ERRORS as error:
        raise OSError(
            f"out: {what} cannot be written to {folder}: got {reason_of(error)!r}; expected free space and write "
            "permission; what was done before is kept: free some space, then go on with --resume"
        ) from error
