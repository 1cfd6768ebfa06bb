"""The data of a comparison, by name or by path."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from relattn.lab.corpus import Corpus
from relattn.lab.music.sources import in_four_voices, load_music
from relattn.lab.music.voices import FourVoices
from relattn.lab.text import load_text
from relattn.support.files import check_name


def load_corpus(source: str, progress: Callable[[int, int], None] | None = None) -> Corpus:
    """What `source` names: "chorales", a .json file in the JSB-Chorales format, a folder of MIDI files, or a text file.

    `progress(done, total)` is called after each file of the chorales or the folder.

    Raises FileNotFoundError: when there is nothing of that name; ValueError: for a name that is not UTF-8, and for a
    single MIDI file; and what `load_music`, `load_midi_folder` and `load_text` raise.
    """
    check_name("data", source)
    path = Path(source)
    if in_four_voices(source):
        return FourVoices(load_music(source, progress=progress))
    if path.is_dir():
        from relattn.lab.music.folder import load_midi_folder  # loads mido

        return load_midi_folder(path, progress)
    if not path.is_file():
        raise FileNotFoundError(
            f'data: got {source!r}, which is not there; expected "chorales", a JSON file of chorales, a text file or a '
            "folder of MIDI files"
        )
    if path.suffix.lower() in (".mid", ".midi"):
        raise ValueError(
            f"data: got {source}, a single MIDI file; expected a folder with at least three; name their folder"
        )
    return load_text(path)
