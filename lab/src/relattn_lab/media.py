"""The kinds of data that the lab trains on, composes and writes: four voices, played music, text."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from relattn.cli.files import check_name
from relattn_lab.corpus import Corpus
from relattn_lab.medium import Medium
from relattn_lab.played.medium import PlayedMusic
from relattn_lab.text.medium import Text
from relattn_lab.voices.medium import FourVoices

MEDIA: dict[str, Medium] = {medium.kind: medium for medium in (FourVoices(), PlayedMusic(), Text())}
"""By `Medium.kind`, which checkpoints keep. The first that recognises a name loads it."""


def load_corpus(source: str, progress: Callable[[int, int], None] | None = None, skip_bad: bool = False) -> Corpus:
    """What `source` names: "chorales", a .json file in the JSB-Chorales format, a folder of MIDI files, or a text file.

    `progress(done, total)` is called after each file of the chorales or the folder. skip_bad: go on without the files
    of a folder that cannot be used.

    Raises FileNotFoundError: when there is nothing of that name; ValueError: for a name that is not UTF-8, and for a
    single MIDI file; and what `Medium.load` raises.
    """
    check_name("data", source)
    for medium in MEDIA.values():
        if medium.holds(source):
            return medium.load(source, progress, skip_bad)
    if not Path(source).is_file():
        raise FileNotFoundError(
            f'data: got {source!r}, which is not there; expected "chorales", a JSON file of chorales, a text file or a '
            "folder of MIDI files"
        )
    raise ValueError(
        f"data: got {source}, a single MIDI file; expected a folder with at least three; name their folder"
    )
