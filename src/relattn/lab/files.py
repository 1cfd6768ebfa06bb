"""JSON files and folders that are whole or not there."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from relattn.lab.music.files import atomic_path


def write_json(path: Path, value: Any) -> None:
    """Write JSON that appears under its name only once it is whole."""
    with atomic_path(path) as draft:
        draft.write_text(json.dumps(value, indent=1, allow_nan=False) + "\n", encoding="utf-8")


@contextmanager
def whole_folder(path: Path) -> Iterator[Path]:
    """Yield an empty folder to fill; it becomes `path`, replacing what was there, if the block ends well."""
    draft = path.with_name(f".{path.name}.partial")
    shutil.rmtree(draft, ignore_errors=True)
    draft.mkdir(parents=True)
    yield draft
    if path.exists():
        shutil.rmtree(path)
    os.replace(draft, path)
