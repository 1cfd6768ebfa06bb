"""The Bach chorales that the package music21 carries, read at run time and kept in a cache."""

from __future__ import annotations

import re
import warnings
import zipfile
import zlib
from collections.abc import Callable, Sequence
from importlib import metadata
from pathlib import Path

import numpy as np

from relattn.cli.files import atomic_path
from relattn_lab.voices.pieces import MusicData, Piece
from relattn_lab.voices.split import held_soprano, split_pieces

# Part of the cache's file name: raise it whenever chorale_parser.py or the arrays below change
CACHE_FORMAT = 1


def load_chorales(*, cache_dir: Path | None = None, progress: Callable[[int, int], None] | None = None) -> MusicData:
    """Bach's four-part chorales: 352 pieces, 307,984 tokens (music21 10.5.1), split 280 / 36 / 36 by `split_pieces`.

    Of music21's .mxl files under Bach, 364 have exactly four parts; those with instruments or a second soprano beside
    the four voices are left out whole. Of pieces whose sopranos are the same from the first step to the last, as
    intervals, the first in the catalogue (BWV) is kept: 352. `parse_chorale` says how a score is read.

    The first call reads the scores (about half a minute) and keeps the pieces in `cache_dir` (default ~/.cache/relattn)
    under a name with music21's version; `progress(done, total)` is then called after each file. Later calls read the
    cache; a file there that cannot be read whole is replaced. Warns when the cache cannot be written.
    """
    path = _cache_path(Path.home() / ".cache" / "relattn" if cache_dir is None else cache_dir)
    pieces = _read_cache(path)
    if pieces is None:
        pieces = _parse_all(progress)
        _write_cache(path, pieces)
    return split_pieces("chorales", distinct(pieces))


def distinct(pieces: Sequence[Piece]) -> list[Piece]:
    """`pieces` less every one whose whole soprano, as intervals and with rests held, equals an earlier one's."""
    first: dict[bytes, Piece] = {}
    for piece in pieces:
        first.setdefault(np.diff(held_soprano(piece.steps)).tobytes(), piece)
    return list(first.values())


def _parse_all(progress: Callable[[int, int], None] | None) -> list[Piece]:
    """Every four-part piece, in the order of the catalogue."""
    from relattn_lab.voices.chorale_parser import chorale_paths, parse_chorale  # music21 takes seconds to import

    pieces = []
    paths = sorted(chorale_paths(), key=lambda path: _catalogue_order(path.stem))
    for done, path in enumerate(paths, start=1):
        piece = parse_chorale(path)
        if piece is not None:
            pieces.append(piece)
        if progress is not None:
            progress(done, len(paths))
    return pieces


def _catalogue_order(name: str) -> list[str | int]:
    """Sorts "bwv2.6" before "bwv10.7": text and numbers by turns."""
    return [int(part) if part.isdigit() else part for part in re.split(r"(\d+)", name)]


def _cache_path(folder: Path) -> Path:
    return folder / f"chorales-{CACHE_FORMAT}-music21-{metadata.version('music21')}.npz"


def _write_cache(path: Path, pieces: Sequence[Piece]) -> None:
    arrays = {
        "names": np.array([piece.name for piece in pieces]),
        "lengths": np.array([len(piece.steps) for piece in pieces]),
        "metres": np.array([(piece.upbeat, piece.bar_steps) for piece in pieces]),
        "steps": np.concatenate([piece.steps for piece in pieces]),
    }
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with atomic_path(path) as temporary:
            np.savez_compressed(temporary, allow_pickle=False, **arrays)
    except OSError as error:
        warnings.warn(f"the chorales could not be cached, and will be parsed again next time: {error}", stacklevel=3)


def _read_cache(path: Path) -> list[Piece] | None:
    """The cached pieces, or None when there is no file or it is broken (the archive's checksums tell)."""
    try:
        with np.load(path, allow_pickle=False) as arrays:
            lengths, steps = arrays["lengths"], arrays["steps"]
            if lengths.sum() != len(steps):
                return None
            return [
                Piece(str(name), part, int(upbeat), int(bar_steps))
                for name, part, (upbeat, bar_steps) in zip(
                    arrays["names"], np.split(steps, np.cumsum(lengths)[:-1]), arrays["metres"], strict=True
                )
            ]
    except (OSError, ValueError, TypeError, KeyError, EOFError, zipfile.BadZipFile, zlib.error):
        return None
