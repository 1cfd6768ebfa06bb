"""One chorale of music21's corpus, read onto the 16th-note grid."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
from music21 import converter, corpus

from relattn_lab.voices.pieces import SILENCE, STEPS_PER_BEAT, VOICES, Piece


def chorale_paths() -> list[Path]:
    """The compressed MusicXML files (.mxl) that music21 keeps under Bach, by name."""
    # asked for "mxl" alone, music21 gives the uncompressed files too
    return sorted(path for path in map(Path, corpus.getComposer("bach")) if path.suffix == ".mxl")


def parse_chorale(path: Path) -> Piece | None:
    """The piece in the MusicXML file `path`, or None unless its score has exactly four parts: S, A, T, B in order.

    - A step holds the pitch that sounds when the step begins: a note covers the steps k with start <= k < end, in
      16ths. A 32nd note between two grid points is passed over; a triplet note counts at the grid points it covers.
    - A note tied to the next goes on; so does one repeated at the same pitch, since the grid stores no onsets.
    - Where several notes of a part sound at once (a chord, two voices on one staff) the highest counts.
    - Grace notes have no length and are left out. Fermatas are left out, and repeats are not played twice.
    - A short first measure is an upbeat. The metre is the first time signature's, also where it changes later (two
      pieces).
    """
    # storePickle: music21 would else keep a second cache of its own, in the shared temporary folder
    score: Any = converter.parse(path, forceSource=True, storePickle=False)
    parts = list(score.parts)
    if len(parts) != len(VOICES):
        return None
    length = math.ceil(max(part.highestTime for part in parts) * STEPS_PER_BEAT)
    steps = np.full((length, len(VOICES)), SILENCE, dtype=np.int16)
    for voice, part in enumerate(parts):
        for note in part.flatten().notes:
            first, end = (math.ceil(time * STEPS_PER_BEAT) for time in (note.offset, note.offset + note.quarterLength))
            pitch = max(p.midi for p in note.pitches)
            steps[first:end, voice] = np.maximum(steps[first:end, voice], pitch)
    upbeat, bar_steps = _metre(parts[0])
    return Piece(path.stem, steps, upbeat, bar_steps)


def _metre(part: Any) -> tuple[int, int]:
    """(steps before the first bar line, steps in a bar)."""
    measure = part.getElementsByClass("Measure").first()
    bar_steps = round(measure.barDuration.quarterLength * STEPS_PER_BEAT)
    first_steps = round(measure.duration.quarterLength * STEPS_PER_BEAT)
    return first_steps % bar_steps, bar_steps
