"""Files that are complete or absent, and names and reasons that can be shown."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

PARTIAL_PREFIX = ".partial-"
"""The beginning of drafts' names. Drafts that a killed process leaves may be ignored, and removed."""


@contextmanager
def atomic_path(path: str | Path) -> Iterator[Path]:
    """Yields the path of a draft beside `path`. Without an error the draft becomes `path` at the end, else it is
    removed.

    The draft's name keeps the suffix of `path`.

    Raises FileNotFoundError: when the folder of `path` does not exist; OSError: in one sentence, when the file cannot
    be written.
    """
    path = Path(path)
    if not path.parent.is_dir():
        raise FileNotFoundError(
            f"path: got {str(path)!r}, whose folder does not exist; expected a name in a folder; create the folder "
            "first"
        )
    with explain_write_errors(path):
        handle, name = tempfile.mkstemp(prefix=f"{PARTIAL_PREFIX}{path.stem}-", suffix=path.suffix, dir=path.parent)
        os.close(handle)
    draft = Path(name)
    try:
        with explain_write_errors(path):
            yield draft
            # mkstemp makes files that only their owner can read; a result gets the permissions of any new file
            mask = os.umask(0)
            os.umask(mask)
            draft.chmod(0o666 & ~mask)
            draft.replace(path)
    finally:
        draft.unlink(missing_ok=True)


def check_name(argument: str, path: str | Path) -> None:
    """A name that can be shown and written into a page.

    Raises ValueError: when `path` is not valid UTF-8.
    """
    try:
        str(path).encode()
    except UnicodeEncodeError:
        raise ValueError(
            f"{argument}: got {os.fsencode(path)!r}, which is not UTF-8; expected a name in UTF-8; rename it"
        ) from None


def reason_of(error: BaseException) -> str:
    """The reason of an error: the system's words, or the first line of the message."""
    if isinstance(error, OSError) and error.strerror:
        return error.strerror
    return str(error).strip().partition("\n")[0] or type(error).__name__


@contextmanager
def explain_write_errors(path: Path) -> Iterator[None]:
    """Inside, a system error about writing `path` becomes one sentence. An error that is one sentence already stays.

    Raises OSError: in place of the system's own.
    """
    try:
        yield
    except OSError as error:
        if error.errno is None:
            raise
        raise OSError(
            f"{path} cannot be written: got {error.strerror!r}; expected free space and write permission; free some "
            "space, or choose another folder"
        ) from error
