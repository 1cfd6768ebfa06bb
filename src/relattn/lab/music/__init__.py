"""Music as arrays: where it comes from, how it becomes tokens and windows, how it is heard and seen.

A **step** is a 16th note; a **piece** is steps int16 [T, 4], the MIDI pitch of soprano, alto, tenor and bass when the
step begins, -1 for silence. The way in is `load_music` -> `MusicData` -> `Vocabulary` -> `TrainingWindows` and
`evaluation_windows`; `NGram` is the baseline. The way out is `write_midi` (in midi.py, which loads mido) and
`draw_pianoroll` (in pianoroll.py, which loads matplotlib). All of it is NumPy.

Played music, of any MIDI file, stands beside it: **notes** int32 [N, 4] (performance.py), as events (events.py), read
from a folder (folder.py) and drawn (performance_roll.py).
"""

from relattn.lab.music.chorales import load_chorales
from relattn.lab.music.data import MusicData, Piece
from relattn.lab.music.json_format import load_json
from relattn.lab.music.ngram import NGram
from relattn.lab.music.sources import load_music
from relattn.lab.music.tokens import Vocabulary, transpose, transpositions, voice_ranges
from relattn.lab.music.windows import (
    TrainingWindows,
    evaluation_windows,
)

__all__ = [
    "MusicData",
    "NGram",
    "Piece",
    "TrainingWindows",
    "Vocabulary",
    "evaluation_windows",
    "load_chorales",
    "load_json",
    "load_music",
    "transpose",
    "transpositions",
    "voice_ranges",
]
