"""The data of a comparison, by name or by path."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from relattn.lab.corpus import Corpus
from relattn.lab.music.sources import load_music
from relattn.lab.music.voices import FourVoices
from relattn.lab.text import load_text


def load_corpus(source: str, progress: Callable[[int, int], None] | None = None) -> Corpus:
    """What `source` names: "chorales", a .json file in the JSB-Chorales format, a folder of MIDI files, or a text file.

    `progress(done, total)` is called after each file of the chorales or the folder. Raises FileNotFoundError when
    there is nothing of that name, and what `load_music`, `load_midi_folder` and `load_text` raise.
    """
    path = Path(source)
    if source == "chorales" or path.suffix.lower() == ".json":
        return FourVoices(load_music(source, progress=progress))
    if path.is_dir():
        from relattn.lab.music.folder import load_midi_folder  # loads mido

        return load_midi_folder(path, progress)
    if not path.is_file():
        raise FileNotFoundError(
            f'data: expected "chorales", a JSON file of chorales, a text file or a folder of MIDI files, and there is '
            f"no {source!r}"
        )
    if path.suffix.lower() in (".mid", ".midi"):
        raise ValueError(f"data: {source} is a single MIDI file; name a folder with at least three")
    return load_text(path)
