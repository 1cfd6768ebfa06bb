"""A piece of four-part music and a data set of them."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from relattn.errors import ShapeError
from relattn_lab.corpus import SPLITS

VOICES = ("soprano", "alto", "tenor", "bass")
STEPS_PER_BEAT = 4
SILENCE = -1


def check_steps(steps: np.ndarray, name: str = "steps") -> None:
    """`steps` is an integer array [T, 4] with T >= 1, every entry a MIDI pitch 0..127 or -1 for silence.

    Raises TypeError: for anything but an integer array; ShapeError: for its shape; ValueError: for a pitch.
    """
    if not isinstance(steps, np.ndarray) or not np.issubdtype(steps.dtype, np.integer):
        came = f"an array of {steps.dtype}" if isinstance(steps, np.ndarray) else type(steps).__name__
        raise TypeError(f"{name}: got {came}; expected a NumPy array of integers [steps, 4]")
    if steps.ndim != 2 or steps.shape[1] != len(VOICES) or not len(steps):
        raise ShapeError(f"{name}: got shape {list(steps.shape)}; expected [steps, 4] with at least one step")
    wrong = np.argwhere((steps < SILENCE) | (steps > 127))
    if len(wrong):
        step, voice = wrong[0]
        raise ValueError(
            f"{name}: got {steps[step, voice]} for the {VOICES[voice]} at step {step}; "
            "expected a MIDI pitch 0..127, or -1 for silence"
        )


@dataclass(frozen=True, eq=False)
class Piece:
    """One piece: `steps` [T, 4], the pitches of soprano, alto, tenor and bass at each 16th note, -1 = silence.

    `steps` is kept as a read-only int16 copy. `upbeat` counts the steps before the first bar line, `bar_steps` the
    steps in a bar (the piece's first time signature; 16 is 4/4).

    Raises ValueError: for an impossible metre; and what `check_steps` raises.
    """

    name: str
    steps: np.ndarray
    upbeat: int = 0
    bar_steps: int = 16

    def __post_init__(self) -> None:
        check_steps(self.steps, f"piece {self.name!r}")
        if self.bar_steps < 1:
            raise ValueError(f"piece {self.name!r}: got bar_steps={self.bar_steps}; expected at least 1")
        if not 0 <= self.upbeat < self.bar_steps:
            raise ValueError(
                f"piece {self.name!r}: got upbeat={self.upbeat}; expected 0..{self.bar_steps - 1}, less than a bar"
            )
        steps = self.steps.astype(np.int16)
        steps.flags.writeable = False
        object.__setattr__(self, "steps", steps)


@dataclass(frozen=True, eq=False)
class MusicData:
    """Pieces to train on, to choose by (valid) and to report on (test).

    Raises ValueError: for an empty split.
    """

    name: str
    train: tuple[Piece, ...]
    valid: tuple[Piece, ...]
    test: tuple[Piece, ...]

    def __post_init__(self) -> None:
        for name in SPLITS:
            if not self.split(name):
                raise ValueError(
                    f"data: got {self.name!r} with nothing in the split {name!r}; expected at least one piece"
                )

    def split(self, name: str) -> tuple[Piece, ...]:
        """The pieces of split `name`: "train", "valid" or "test".

        Raises ValueError: for another name.
        """
        if name not in SPLITS:
            raise ValueError(f"split: got {name!r}; expected one of {', '.join(SPLITS)}")
        return getattr(self, name)

    @property
    def pieces(self) -> tuple[Piece, ...]:
        """All pieces: train, then valid, then test."""
        return self.train + self.valid + self.test
