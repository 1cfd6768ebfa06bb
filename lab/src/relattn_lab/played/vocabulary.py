"""Played music as tokens: notes begin and end, time passes (Oore et al. 2018; Huang et al. 2018, Music Transformer)."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from relattn_lab.played.notes import END, PITCH, START, VELOCITY, without_overlaps

PITCHES = 128
LONGEST_SHIFT = 100
LOUDNESSES = 32
LOUDNESS_STEP = 4
DEFAULT_VELOCITY = 64
ENDS, SHIFTS, LOUDER = PITCHES, 2 * PITCHES, 2 * PITCHES + LONGEST_SHIFT
"""The first event of each kind after the beginnings of notes, which are the first 128."""


@dataclass(frozen=True)
class Events:
    """token = event + 1; 388 events, and "begin", token 0.

    Events 0..127: the pitch begins; 128..255: it ends; 256..355: 10, 20, ..., 1000 milliseconds pass; 356..387: notes
    from here on have the velocity 4 v + 2, v = 0..31.

    Source: Oore et al. 2018 ("This time with feeling"), section 3; Huang et al. 2018, section 3.1, with these numbers.
    """

    begin = 0
    symbols = LOUDER + LOUDNESSES
    size = symbols + 1

    def events(self, notes: np.ndarray) -> np.ndarray:
        """The events of `notes` [N, 4] (see `read_notes`), int16 [n]: at one time ends, then beginnings, from below."""
        moments = [(int(note[END]), 0, int(note[PITCH]), 0) for note in notes]
        moments += [(int(note[START]), 1, int(note[PITCH]), int(note[VELOCITY]) // LOUDNESS_STEP) for note in notes]
        events: list[int] = []
        now, loudness = 0, -1
        for time, begins, pitch, loud in sorted(moments):
            while now < time:
                shift = min(time - now, LONGEST_SHIFT)
                events.append(SHIFTS + shift - 1)
                now += shift
            if begins and loud != loudness:
                events.append(LOUDER + loud)
                loudness = loud
            events.append(pitch if begins else ENDS + pitch)
        return np.array(events, dtype=np.int16)

    def notes(self, tokens: np.ndarray) -> np.ndarray:
        """The notes that the `tokens` say, int32 [N, 4].

        Any sequence can be played. An end without a start is ignored. A restarted pitch ends the old note. Open notes
        end at the end.
        """
        notes: list[tuple[int, int, int, int]] = []
        sounding: dict[int, tuple[int, int]] = {}
        now, velocity = 0, DEFAULT_VELOCITY

        def end(pitch: int) -> None:
            if pitch in sounding:
                start, loud = sounding.pop(pitch)
                notes.append((start, now, pitch, loud))

        for event in (tokens[tokens != self.begin] - 1).tolist():
            if event < ENDS:
                end(event)
                sounding[event] = (now, velocity)
            elif event < SHIFTS:
                end(event - ENDS)
            elif event < LOUDER:
                now += event - SHIFTS + 1
            else:
                velocity = (event - LOUDER) * LOUDNESS_STEP + LOUDNESS_STEP // 2
        for pitch in list(sounding):
            end(pitch)
        return without_overlaps(np.array(notes, dtype=np.int32).reshape(-1, 4))

    def duration(self, tokens: np.ndarray) -> int:
        """How much time passes in the `tokens`, in hundredths of a second."""
        events = tokens - 1
        shifts = events[(events >= SHIFTS) & (events < LOUDER)]
        return int((shifts - SHIFTS + 1).sum())
