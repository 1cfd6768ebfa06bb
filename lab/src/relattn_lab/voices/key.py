"""The key of a piece, estimated."""

from __future__ import annotations

import numpy as np

from relattn_lab.voices.pieces import SILENCE

MAJOR = (6.35, 2.23, 3.48, 2.33, 4.38, 4.09, 2.52, 5.19, 2.39, 3.66, 2.29, 2.88)
MINOR = (6.33, 2.68, 3.52, 5.38, 2.60, 3.53, 2.54, 4.75, 3.98, 2.69, 3.34, 3.17)
"""How well each pitch class, from the tonic upwards, fits a key: Krumhansl and Kessler 1982, as in Krumhansl 1990."""
MAJOR_KEYS = ("C", "Db", "D", "Eb", "E", "F", "F#", "G", "Ab", "A", "Bb", "B")
MINOR_KEYS = ("Cm", "C#m", "Dm", "Ebm", "Em", "Fm", "F#m", "Gm", "G#m", "Am", "Bbm", "Bm")
"""As MIDI files name them, by the tonic's pitch class."""


def key_of(steps: np.ndarray) -> str:
    """The key whose profile correlates best with how long each pitch class sounds in `steps` [T, 4]; "C" for silence.

    Source: the algorithm of Krumhansl and Schmuckler (Krumhansl 1990, "Cognitive foundations of musical pitch").
    """
    durations = np.bincount(steps[steps != SILENCE] % 12, minlength=12).astype(float)
    if durations.std() == 0:
        return MAJOR_KEYS[0]
    fits = {
        name: np.corrcoef(np.roll(profile, tonic), durations)[0, 1]
        for profile, names in ((MAJOR, MAJOR_KEYS), (MINOR, MINOR_KEYS))
        for tonic, name in enumerate(names)
    }
    return max(fits, key=fits.__getitem__)
