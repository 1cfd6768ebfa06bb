"""Data by name or by path."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from relattn.lab.music.chorales import load_chorales
from relattn.lab.music.data import MusicData
from relattn.lab.music.json_format import load_json


def load_music(
    source: str | Path, *, cache_dir: Path | None = None, progress: Callable[[int, int], None] | None = None
) -> MusicData:
    """The data that `source` names: "chorales" (see `load_chorales`), or the path of a JSON file (see `load_json`).

    `cache_dir` and `progress` are those of `load_chorales`. Raises FileNotFoundError when `source` is neither, and
    IsADirectoryError for a folder.
    """
    if source == "chorales":
        return load_chorales(cache_dir=cache_dir, progress=progress)
    if Path(source).is_dir():
        raise IsADirectoryError(
            f'data: expected "chorales" or the path of a JSON file, and {str(source)!r} is a folder'
        )
    if not Path(source).exists():
        raise FileNotFoundError(
            f'data: expected "chorales" or the path of a JSON file, and there is no file {str(source)!r}'
        )
    return load_json(Path(source))
