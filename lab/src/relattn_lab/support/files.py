"""Files and folders that are complete or absent, and names that can be shown."""

from __future__ import annotations

import json
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

DRAFT = ".partial-"
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
    with said(path):
        handle, name = tempfile.mkstemp(prefix=f"{DRAFT}{path.stem}-", suffix=path.suffix, dir=path.parent)
        os.close(handle)
    draft = Path(name)
    try:
        with said(path):
            yield draft
            # mkstemp makes files that only their owner can read; a result gets the permissions of any new file
            mask = os.umask(0)
            os.umask(mask)
            draft.chmod(0o666 & ~mask)
            draft.replace(path)
    finally:
        draft.unlink(missing_ok=True)


def write_text(path: Path, text: str) -> None:
    """Write a text in UTF-8. It appears under its name only when it is complete.

    Raises OSError: in one sentence, when the file cannot be written.
    """
    with atomic_path(path) as draft:
        draft.write_text(text, encoding="utf-8")


def write_json(path: Path, value: Any) -> None:
    """Write JSON. It appears under its name only when it is complete.

    Raises OSError: in one sentence, when the file cannot be written.
    """
    write_text(path, as_json(value))


def as_json(value: Any) -> str:
    """JSON as the files have it."""
    return json.dumps(value, indent=1, allow_nan=False) + "\n"


@contextmanager
def whole_folder(path: Path) -> Iterator[Path]:
    """Yield an empty folder to fill. If the block ends without an error, it becomes `path` and replaces the old one.

    Raises OSError: in one sentence, when something in it cannot be written.
    """
    draft = path.with_name(f"{DRAFT}{path.name}")
    shutil.rmtree(draft, ignore_errors=True)
    try:
        with said(path):
            draft.mkdir(parents=True)
            yield draft
            if path.exists():
                shutil.rmtree(path)
            os.replace(draft, path)
    finally:
        shutil.rmtree(draft, ignore_errors=True)


def remove_drafts(folder: Path) -> None:
    """Remove half-written files that a killed process has left in `folder` and below."""
    for draft in list(folder.rglob(f"{DRAFT}*")):
        if draft.is_dir():
            shutil.rmtree(draft)
        else:
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


def check_folder(argument: str, path: Path) -> None:
    """`path` is a folder with a name that can be shown, or does not exist yet.

    Raises ValueError: when the name is not valid UTF-8; FileExistsError: when it is a file.
    """
    check_name(argument, path)
    if path.exists() and not path.is_dir():
        raise FileExistsError(
            f"{argument}: got {path}, which is a file; expected a folder; choose another --{argument}"
        )


def check_writable(path: Path) -> None:
    """Files can be made in the folder `path`, or where it will be made.

    Raises OSError: in one sentence, when they cannot.
    """
    there = next(folder for folder in (path, *path.parents) if folder.exists())
    with said(path), tempfile.TemporaryFile(dir=there):
        pass


def reason_of(error: BaseException) -> str:
    """The reason of an error: the system's words, or the first line of the message."""
    if isinstance(error, OSError) and error.strerror:
        return error.strerror
    return str(error).strip().partition("\n")[0] or type(error).__name__


@contextmanager
def said(path: Path) -> Iterator[None]:
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
