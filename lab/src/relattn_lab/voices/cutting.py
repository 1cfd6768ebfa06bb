"""Pieces as windows of equal length: random crops to train on, the whole of every piece to evaluate on.

In every window position p predicts voice p % 4, since windows begin where a step begins: labels are the tokens of whole
steps, and the input before the first of them is "begin" at the piece's start, the previous step's bass token elsewhere.
A window holds one piece, padded on the right with silence whose labels are IGNORED; a causal mask keeps everything
apart.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from relattn_lab.voices.pieces import VOICES, Piece
from relattn_lab.voices.vocabulary import Vocabulary, transpose, transpositions, voice_ranges
from relattn_lab.windows import IGNORED, DrawnWindows, Windows, draw_crop


class TrainingWindows(DrawnWindows):
    """`count` random crops of `pieces`, each {"input_ids", "labels"}, int64 [length]; labels[p] follows input_ids[p].

    Example i is a function of (seed, i) alone, so a run that stopped goes on with the very same data. A piece and its
    crop are drawn by `draw_crop`, and transposed by a uniform draw among the moves that keep each voice in its range in
    `pieces`. A piece shorter than the window is padded. `length` is in tokens, a multiple of 4.

    Raises ValueError: for no pieces, a length, a count or a seed that cannot be, or a pitch outside the vocabulary.
    """

    def __init__(self, pieces: Sequence[Piece], vocabulary: Vocabulary, length: int, count: int, seed: int) -> None:
        _check(pieces, length)
        if count < 1:
            raise ValueError(f"count: got {count}; expected at least one window")
        if seed < 0:
            raise ValueError(f"seed: got {seed}; expected an integer of at least 0")
        super().__init__(count, seed)
        self._pieces, self._vocabulary, self._length = pieces, vocabulary, length
        for piece in pieces:
            # finds a pitch outside the vocabulary now, not in the middle of a run; moves stay among these pitches
            vocabulary.encode(piece.steps)
        ranges = voice_ranges(pieces)
        self._moves = [transpositions(piece.steps, ranges) for piece in pieces]
        self._ends = np.cumsum([len(piece.steps) for piece in pieces])

    def _draw(self, random: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
        size = self._length // len(VOICES)
        chosen, start = draw_crop(random, self._ends, size)
        moves, steps = self._moves[chosen], self._pieces[chosen].steps
        moved = transpose(steps[max(0, start - 1) : start + size], moves[random.integers(len(moves))])
        return _window(moved, min(start, 1), self._vocabulary, self._length)


def evaluation_windows(pieces: Sequence[Piece], vocabulary: Vocabulary, length: int, context: int = 0) -> Windows:
    """The whole of `pieces` in windows of `length` tokens, every token the label of exactly one position.

    Windows of a piece begin every `length - context` tokens. In all but a piece's first, the labels of the first
    `context` positions are IGNORED: they were counted in the window before and serve as context here. Both lengths are
    multiples of 4.

    Raises ValueError: for other lengths, unless 0 <= context < length, and for no pieces.
    """
    _check(pieces, length)
    if not 0 <= context < length or context % len(VOICES):
        raise ValueError(f"context: got {context}; expected a multiple of 4 within 0..{length - 4} (below length)")
    size, stride = length // len(VOICES), (length - context) // len(VOICES)
    rows = []
    for index, piece in enumerate(pieces):
        # the last window is the first that reaches the end: a further one would hold counted tokens only
        for start in range(0, max(1, len(piece.steps) - context // len(VOICES)), stride):
            inputs, labels = _window(piece.steps, start, vocabulary, length)
            filled = len(VOICES) * min(size, len(piece.steps) - start)
            if start:
                labels[:context] = IGNORED
            rows.append((inputs, labels, filled, index, start))
    columns = zip(*rows, strict=True)
    return Windows(*(np.array(column, dtype=np.int64) for column in columns))


def _window(steps: np.ndarray, start: int, vocabulary: Vocabulary, length: int) -> tuple[np.ndarray, np.ndarray]:
    """(input_ids, labels), int64 [length], of the window whose first label is the soprano of step `start`."""
    inputs = np.full(length, vocabulary.silence, dtype=np.int64)
    labels = np.full(length, IGNORED, dtype=np.int64)
    tokens = vocabulary.encode(steps[start : start + length // len(VOICES)])
    labels[: len(tokens)] = tokens
    inputs[0] = vocabulary.encode(steps[start - 1 : start])[-1] if start else vocabulary.begin
    inputs[1 : len(tokens)] = tokens[:-1]
    return inputs, labels


def _check(pieces: Sequence[Piece], length: int) -> None:
    if not pieces:
        raise ValueError("pieces: got none; expected at least one piece")
    if length < len(VOICES) or length % len(VOICES):
        raise ValueError(f"length: got {length}; expected a positive multiple of 4 (whole steps of four voices)")
