"""A folder of MIDI files as the data of a comparison."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from pathlib import Path

import numpy as np

from relattn.lab.corpus import SPLITS, Words
from relattn.lab.played.notes import read_notes
from relattn.lab.played.vocabulary import Events
from relattn.lab.sequences import Sequences
from relattn.support.files import check_name

SUFFIXES = (".mid", ".midi")
WORDS = Words(
    tokens="MIDI files as events: notes begin, notes end, 10 to 1000 milliseconds pass, velocity in 32 steps; all "
    "instruments but drums as one",
    ngram="The n-gram looks at up to five events back, across the beginning of a window too.",
    typical="Events are not equal in time: the same music has more of them where more notes are played.",
)


def load_midi_folder(folder: Path, progress: Callable[[int, int], None] | None = None) -> Sequences:
    """The MIDI files of `folder` and the folders in it, a piece each, split 80 / 10 / 10 percent by file.

    The split follows the SHA-256 of the files' bytes, which no name or place changes; of equal files the first counts.
    A split's files are read when it is asked for; `progress(done, total)` is then called after each.

    Raises what `split_files` raises and, in reading, what `read_notes` raises.
    """
    paths = split_files(folder)
    vocabulary = Events()

    def read(split: str) -> list[np.ndarray]:
        pieces = []
        for done, path in enumerate(paths[split], start=1):
            pieces.append(vocabulary.events(read_notes(path)))
            if progress is not None:
                progress(done, len(paths[split]))
        return pieces

    return Sequences("midi", folder.resolve().name, WORDS, vocabulary, read)


def split_files(folder: Path) -> dict[str, list[Path]]:
    """The MIDI files of each split, in the order of their SHA-256.

    Raises ValueError: for fewer than three different files, and for a name that is not UTF-8.
    """
    found = sorted(path for path in folder.rglob("*") if path.suffix.lower() in SUFFIXES and path.is_file())
    for path in found:
        check_name("data", path)
    if not found:
        raise ValueError(f"data: got the folder {folder} without MIDI files; expected at least 3, named .mid or .midi")
    distinct: dict[bytes, Path] = {}
    for path in found:
        distinct.setdefault(hashlib.sha256(path.read_bytes()).digest(), path)
    if len(distinct) < len(SPLITS):
        raise ValueError(
            f"data: got the folder {folder} with {len(distinct)} different MIDI files; expected at least 3, to "
            "train on, "
            "to choose by and to hold out"
        )
    ordered = [distinct[digest] for digest in sorted(distinct)]
    tenth = max(1, len(ordered) // 10)
    return {"valid": ordered[:tenth], "test": ordered[tenth : 2 * tenth], "train": ordered[2 * tenth :]}
