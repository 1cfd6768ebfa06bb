"""Four voices as arrays: where they come from, how they become tokens and windows, how they are heard and seen.

A **step** is a 16th note; a **piece** is steps int16 [T, 4], the MIDI pitch of soprano, alto, tenor and bass when the
step begins, -1 for silence. The way in is `load_music` -> `MusicData` -> `Vocabulary` -> `TrainingWindows` and
`evaluation_windows`; `NGram` is the baseline. The way out is `write_midi` (midi.py) and `draw_voices` (picture.py).
"""

from relattn_lab.voices.chorales import load_chorales
from relattn_lab.voices.cutting import (
    TrainingWindows,
    evaluation_windows,
)
from relattn_lab.voices.json_format import load_json
from relattn_lab.voices.ngram import NGram
from relattn_lab.voices.pieces import MusicData, Piece
from relattn_lab.voices.sources import load_music
from relattn_lab.voices.vocabulary import Vocabulary, transpose, transpositions, voice_ranges

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
