"""The events of MIDI files, kept: reading a large folder takes minutes, and the next run needs none of them."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from pathlib import Path

import numpy as np

from relattn.cli.files import atomic_path
from relattn_lab.played.vocabulary import Events

# Part of the folder's name: raise it whenever notes.py or vocabulary.py make other events of a file
CACHE_FORMAT = 1
FOLDER = Path("~/.cache/relattn", f"midi-{CACHE_FORMAT}")

UNKEPT = OSError, RuntimeError
"""What comes of a folder that cannot be used, and of a user without a home."""


def cached_events(digest: str, make: Callable[[], np.ndarray]) -> np.ndarray:
    """The events, int16 [n], of the file with this SHA-256: those kept in FOLDER, or else what `make` gives.

    What is kept and damaged is replaced. Warns when nothing can be kept.
    """
    path = FOLDER / f"{digest}.npy"
    events = _read(path)
    if events is None:
        events = make()
        _write(path, events)
    return events


def _read(path: Path) -> np.ndarray | None:
    try:
        events = np.load(path.expanduser(), allow_pickle=False)
    except (*UNKEPT, ValueError, EOFError):
        return None
    whole = events.dtype == np.int16 and events.ndim == 1 and len(events)
    return events if whole and 0 <= events.min() <= events.max() < Events.symbols else None


def _write(path: Path, events: np.ndarray) -> None:
    try:
        place = path.expanduser()
        place.parent.mkdir(parents=True, exist_ok=True)
        with atomic_path(place) as draft:
            np.save(draft, events, allow_pickle=False)
    except UNKEPT:
        warnings.warn(f"the files' events cannot be kept in {path.parent}, and will be read again", stacklevel=3)
