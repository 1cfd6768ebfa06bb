"""Steps as tokens: four voices interleaved, S1 A1 T1 B1 S2 A2 ..., one token per pitch; and transposition."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from relattn.errors import ShapeError
from relattn_lab.voices.pieces import SILENCE, VOICES, Piece, check_steps


@dataclass(frozen=True)
class Vocabulary:
    """token(begin) = 0, token(silence) = 1, token(pitch) = 2 + pitch - low, for low..high; all voices share it.

    "Begin" stands before a piece's first token and is never predicted.

    Raises ValueError: unless 0 <= low <= high <= 127.
    """

    low: int
    high: int

    begin = 0
    silence = 1

    def __post_init__(self) -> None:
        if not 0 <= self.low <= self.high <= 127:
            raise ValueError(f"vocabulary: got low={self.low}, high={self.high}; expected 0 <= low <= high <= 127")

    @classmethod
    def covering(cls, pieces: Sequence[Piece]) -> Vocabulary:
        """The vocabulary from the lowest to the highest pitch in `pieces`.

        Give it the held-out pieces too (`MusicData.pieces`), so that each of their pitches has a token.

        Raises ValueError: when they hold no note.
        """
        pitches = [piece.steps[piece.steps != SILENCE] for piece in pieces]
        heard = np.concatenate(pitches) if pitches else np.empty(0)
        if not heard.size:
            raise ValueError(f"pieces: got {len(pieces)} without any note; expected at least one note")
        return cls(int(heard.min()), int(heard.max()))

    @property
    def size(self) -> int:
        """The number of tokens: begin, silence and the pitches."""
        return self.high - self.low + 3

    def encode(self, steps: np.ndarray) -> np.ndarray:
        """tokens[4 t + v] = token(steps[t, v]): `steps` [T, 4] as int64 [4 T], without "begin".

        Raises ValueError: for a pitch outside the vocabulary; and what `check_steps` raises.
        """
        check_steps(steps)
        outside = np.argwhere((steps != SILENCE) & ((steps < self.low) | (steps > self.high)))
        if len(outside):
            step, voice = outside[0]
            raise ValueError(
                f"steps: got pitch {steps[step, voice]} for the {VOICES[voice]} at step {step}; "
                f"expected {self.low}..{self.high}, which the vocabulary holds; "
                "transpose the piece, or use a vocabulary that covers it"
            )
        flat = steps.astype(np.int64).ravel()
        return np.where(flat == SILENCE, self.silence, flat - self.low + 2)

    def decode(self, tokens: np.ndarray) -> np.ndarray:
        """The steps [ceil(n / 4), 4] (int16) of the n `tokens` after an optional leading "begin"; inverse of `encode`.

        In a last step that is not complete the missing voices are silent.

        Raises TypeError: unless `tokens` are integers; ShapeError: unless they are one-dimensional and hold at least
        one pitch or silence; ValueError: for a token that is neither.
        """
        tokens = np.asarray(tokens)
        if not np.issubdtype(tokens.dtype, np.integer):
            raise TypeError(f"tokens: got {tokens.dtype}; expected integers")
        if tokens.ndim != 1:
            raise ShapeError(f"tokens: got shape {list(tokens.shape)}; expected one dimension")
        body = tokens[1:] if len(tokens) and tokens[0] == self.begin else tokens
        if not len(body):
            raise ShapeError(f'tokens: got {len(tokens)} in all; expected at least one after "begin"')
        wrong = np.flatnonzero((body < self.silence) | (body >= self.size))
        if len(wrong):
            raise ValueError(
                f"tokens: got {body[wrong[0]]} at place {wrong[0] + len(tokens) - len(body)}; "
                f"expected {self.silence}..{self.size - 1}, a pitch or silence"
            )
        flat = np.full(-(-len(body) // len(VOICES)) * len(VOICES), SILENCE, dtype=np.int16)
        flat[: len(body)] = np.where(body == self.silence, SILENCE, body - 2 + self.low)
        return flat.reshape(-1, len(VOICES))


def voice_ranges(pieces: Sequence[Piece]) -> np.ndarray:
    """ranges[v] = (lowest, highest) pitch of voice v in `pieces`: int16 [4, 2]; (128, -1) for one never heard."""
    ranges = np.tile(np.array([128, -1], dtype=np.int16), (len(VOICES), 1))
    for piece in pieces:
        ranges[:, 0] = np.minimum(ranges[:, 0], np.where(piece.steps == SILENCE, 128, piece.steps).min(axis=0))
        ranges[:, 1] = np.maximum(ranges[:, 1], piece.steps.max(axis=0))
    return ranges


def transpositions(steps: np.ndarray, ranges: np.ndarray) -> range:
    """The semitones by which `steps` [T, 4] can move with each voice inside its `ranges` [4, 2] of `voice_ranges`.

    It holds 0 for each piece that the ranges were taken from, and may be empty for another. A silent voice sets no
    limit; a piece without any note can only stay.
    """
    sounding = (steps != SILENCE).any(axis=0)
    if not sounding.any():
        return range(1)
    lowest = np.where(steps == SILENCE, 128, steps).min(axis=0)
    down = (ranges[:, 0] - lowest)[sounding].max()
    up = (ranges[:, 1] - steps.max(axis=0))[sounding].min()
    return range(int(down), int(up) + 1)


def transpose(steps: np.ndarray, semitones: int) -> np.ndarray:
    """steps + semitones where a voice sounds, -1 where it is silent: int16 [T, 4].

    Raises ValueError: when a pitch leaves 0..127.
    """
    moved = np.where(steps == SILENCE, SILENCE, steps + semitones)
    if ((steps != SILENCE) & ((moved < 0) | (moved > 127))).any():
        raise ValueError(f"semitones: got {semitones}; expected a move that stays within the MIDI pitches 0..127")
    return moved.astype(np.int16)
