"""Data by name or by path."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from relattn_lab.voices.chorales import load_chorales
from relattn_lab.voices.json_format import load_json
from relattn_lab.voices.pieces import MusicData


def in_four_voices(source: str) -> bool:
    """Whether `source` names music in four voices: "chorales", or a JSON file."""
    return source == "chorales" or Path(source).suffix.lower() == ".json"


def load_music(
    source: str | Path, *, cache_dir: Path | None = None, progress: Callable[[int, int], None] | None = None
) -> MusicData:
    """The data that `source` names: "chorales" (see `load_chorales`), or the path of a JSON file (see `load_json`).

    `cache_dir` and `progress` are those of `load_chorales`.

    Raises FileNotFoundError: when `source` is neither; IsADirectoryError: for a folder; and what those two raise.
    """
    if source == "chorales":
        return load_chorales(cache_dir=cache_dir, progress=progress)
    if Path(source).is_dir():
        raise IsADirectoryError(
            f'data: got {str(source)!r}, which is a folder; expected "chorales" or the path of a JSON file'
        )
    if not Path(source).exists():
        raise FileNotFoundError(
            f'data: got {str(source)!r}, which is not there; expected "chorales" or the path of a JSON file'
        )
    return load_json(Path(source))
