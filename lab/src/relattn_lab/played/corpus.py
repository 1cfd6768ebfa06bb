"""A folder of MIDI files as the data of a comparison."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import numpy as np

from relattn.cli.files import check_name, reason_of
from relattn_lab.corpus import SPLITS, Words
from relattn_lab.played.kept import cached_events
from relattn_lab.played.notes import UnusableError, read_notes
from relattn_lab.played.vocabulary import Events
from relattn_lab.sequences import Sequences

SUFFIXES = (".mid", ".midi")
NAMED = 5
"""So many files of other kinds are named."""
WORDS = Words(
    tokens="MIDI files as events: notes begin, notes end, 10 to 1000 milliseconds pass, velocity in 32 steps; all "
    "instruments but drums as one",
    ngram="The n-gram looks at up to five events back, across the beginning of a window too.",
    typical="Events are not equal in time: the same music has more of them where more notes are played.",
)


class Played(NamedTuple):
    """A file that can be used: its events, int16 [n]."""

    path: Path
    events: np.ndarray


def load_midi_folder(
    folder: Path, progress: Callable[[int, int], None] | None = None, skip_bad: bool = False
) -> Sequences:
    """The MIDI files of `folder` and the folders in it, a piece each, split as `read_folder` does.

    Raises what `read_folder` raises.
    """
    splits, remarks = read_folder(folder, progress, skip_bad)
    pieces = {split: [played.events for played in files] for split, files in splits.items()}
    return Sequences("midi", folder.resolve().name, WORDS, Events(), pieces.__getitem__, remarks)


def read_folder(
    folder: Path, progress: Callable[[int, int], None] | None = None, skip_bad: bool = False
) -> tuple[dict[str, list[Played]], list[str]]:
    """The MIDI files of each split, 80 / 10 / 10 percent of them; and sentences about what was left out.

    The split follows the SHA-256 of the files' bytes, which no name or place changes; of equal files the first counts.
    Hidden files are left out. `progress(done, total)` is called after each file. What was read is kept
    (`cached_events`).

    skip_bad: go on without files that cannot be used.

    Raises ValueError: for files that cannot be used, all of them with their reasons; for fewer than three different
    ones; for a name that is not UTF-8.
    """
    found, others, bad = _look(folder)
    by_digest: dict[str, Played] = {}
    for done, path in enumerate(found, start=1):
        try:
            digest, events = _read(path)
            by_digest.setdefault(digest, Played(path, events))
        except UnusableError as why:
            bad.append(f"{path}, which {why}")
        if progress is not None:
            progress(done, len(found))
    if bad and not skip_bad:
        raise ValueError(
            f"data: got {'; '.join(bad)}; expected MIDI files with notes; take {'it' if len(bad) == 1 else 'them'} out "
            "of the folder, or pass --skip-bad to go on without"
        )
    if len(by_digest) < len(SPLITS):
        raise ValueError(
            f"data: got the folder {folder} with {len(by_digest)} different MIDI files{' that can be used' * bool(bad)}"
            f"{others and f' ({others})'}; expected at least 3, named .mid or .midi, to train on, to choose by and to "
            "hold out"
        )
    ordered = [by_digest[digest] for digest in sorted(by_digest)]
    tenth = max(1, len(ordered) // 10)
    remarks = [f"left out: {one}" for one in bad] + [others] * bool(others)
    return {"valid": ordered[:tenth], "test": ordered[tenth : 2 * tenth], "train": ordered[2 * tenth :]}, remarks


def _look(folder: Path) -> tuple[list[Path], str, list[str]]:
    """The MIDI files of `folder` and the folders in it, by name; how many files of other kinds are there; and the
    folders that cannot be read.
    """
    unread: list[OSError] = []
    paths = sorted(
        path
        for place, _, names in os.walk(folder, onerror=unread.append)
        for path in (Path(place, name) for name in names)
        if (path.is_file() or path.is_symlink()) and not _is_hidden(path, folder)
    )
    bad = [
        f"{error.filename}, which cannot be read ({reason_of(error)})"
        for error in unread
        if not _is_hidden(Path(error.filename), folder)
    ]
    for path in paths:
        check_name("data", path)
    found = [path for path in paths if path.suffix.lower() in SUFFIXES]
    others = [str(path.relative_to(folder)) for path in paths if path.suffix.lower() not in SUFFIXES]
    if not others:
        return found, "", bad
    named = ", ".join(others[:NAMED]) + (f" and {len(others) - NAMED} more" if len(others) > NAMED else "")
    return found, f"{len(others)} {'file' if len(others) == 1 else 'files'} of other kinds left out: {named}", bad


def _is_hidden(path: Path, folder: Path) -> bool:
    return any(part.startswith(".") for part in path.relative_to(folder).parts)


def _read(path: Path) -> tuple[str, np.ndarray]:
    """The SHA-256 of a file, and its events.

    Raises UnusableError: where there are none.
    """
    try:
        content = path.read_bytes()
    except OSError as error:
        raise UnusableError(f"cannot be read ({reason_of(error)})") from error
    digest = hashlib.sha256(content).hexdigest()
    return digest, cached_events(digest, lambda: Events().events(read_notes(content)))
