"""Texts, JSON and folders that are complete or absent."""

from __future__ import annotations

import json
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from relattn.cli.files import PARTIAL_PREFIX, atomic_path, check_name, explain_write_errors


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
    draft = path.with_name(f"{PARTIAL_PREFIX}{path.name}")
    shutil.rmtree(draft, ignore_errors=True)
    try:
        with explain_write_errors(path):
            draft.mkdir(parents=True)
            yield draft
            if path.exists():
                shutil.rmtree(path)
            os.replace(draft, path)
    finally:
        shutil.rmtree(draft, ignore_errors=True)


def remove_drafts(folder: Path) -> None:
    """Remove half-written files that a killed process has left in `folder` and below."""
    for draft in list(folder.rglob(f"{PARTIAL_PREFIX}*")):
        if draft.is_dir():
            shutil.rmtree(draft)
        else:
            draft.unlink(missing_ok=True)


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
    with explain_write_errors(path), tempfile.TemporaryFile(dir=there):
        pass
