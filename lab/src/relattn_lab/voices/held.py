"""Steps as notes: what is heard and drawn."""

from __future__ import annotations

from itertools import pairwise
from typing import NamedTuple

import numpy as np

from relattn_lab.voices.pieces import SILENCE


class Note(NamedTuple):
    """A pitch (MIDI) that sounds from step `start` up to, not including, step `end`."""

    start: int
    end: int
    pitch: int


def held_notes(steps: np.ndarray, voice: int) -> list[Note]:
    """The notes of one voice of `steps` [T, 4], in order; equal pitches in a row are one, as the grid has no onsets."""
    pitches = steps[:, voice]
    edges = [0, *(np.flatnonzero(np.diff(pitches)) + 1).tolist(), len(pitches)]
    return [Note(start, end, int(pitches[start])) for start, end in pairwise(edges) if pitches[start] != SILENCE]
