"""A tune: four voices with what a page needs to play and to name them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from relattn_lab.listen.attended import Attended
from relattn_lab.voices.held import held_notes
from relattn_lab.voices.midi import BEATS_PER_MINUTE
from relattn_lab.voices.pieces import STEPS_PER_BEAT, VOICES, check_steps


@dataclass(frozen=True, eq=False)
class Tune:
    """`steps` [T, 4] as they are played; the first `given` of them were given to the model.

    title and words are shown as they are. file: what a sound file of it is called. upbeat, bar_steps: the metre, as of
    `Piece`. attended: what every note looks at, None where no model wrote it.

    Raises ValueError: for more steps given than there are; and what `check_steps` raises.
    """

    title: str
    steps: np.ndarray
    given: int = 0
    words: str = ""
    file: str = "tune"
    upbeat: int = 0
    bar_steps: int = 16
    attended: Attended | None = None

    def __post_init__(self) -> None:
        check_steps(self.steps)
        if not 0 <= self.given <= len(self.steps):
            raise ValueError(f"given: got {self.given}; expected 0..{len(self.steps)}, the steps of the tune")

    def as_json(self) -> dict[str, Any]:
        """What the player reads. notes: [first step, step after the last, pitch, voice], in the order of time."""
        notes = [
            [note.start, note.end, note.pitch, voice]
            for voice in range(len(VOICES))
            for note in held_notes(self.steps, voice)
        ]
        return {
            "title": self.title, "words": self.words, "file": self.file, "steps": len(self.steps), "given": self.given,
            "upbeat": self.upbeat, "barSteps": self.bar_steps, "notes": sorted(notes),
            "stepSeconds": 60 / BEATS_PER_MINUTE / STEPS_PER_BEAT,
            "attended": None if self.attended is None else self.attended.as_json(),
        }  # fmt: skip
