"""Sequences of symbols as the data of a comparison: what text and played music have in common."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from relattn_lab.corpus import SPLITS, Corpus, Words
from relattn_lab.interpolation import Interpolation, Part
from relattn_lab.windows import IGNORED, DrawnWindows, Windows, draw_crop

ORDERS = 6
"""The n-gram's: it looks at up to five symbols back."""
FITTED_PARTS = 10

BEGIN = 0
"""The token before a piece's first; symbol s is token s + 1."""


class Sequences(Corpus):
    """Pieces of any length, integer arrays [n] of symbols from 0; token 0 is "begin", which is never predicted.

    vocabulary: what symbols stand for, with their number as `symbols`. read(split): the pieces of a split, asked for
    once, when they are needed. remarks: of `Corpus`.
    """

    def __init__(
        self, kind: str, name: str, words: Words, vocabulary: Any, read: Callable[[str], Sequence[np.ndarray]],
        remarks: Sequence[str] = (),
    ) -> None:  # fmt: skip
        self.kind, self.name, self.words, self.vocabulary, self.remarks = kind, name, words, vocabulary, remarks
        self._read, self._pieces = read, {}

    def pieces(self, split: str) -> Sequence[np.ndarray]:
        """The symbols of every piece."""
        if split not in SPLITS:
            raise ValueError(f"split: got {split!r}; expected one of {', '.join(SPLITS)}")
        if split not in self._pieces:
            self._pieces[split] = self._read(split)
        return self._pieces[split]

    def training_windows(self, length: int, count: int, seed: int) -> RandomWindows:
        """Random crops of the training pieces, as they are."""
        return RandomWindows(self.pieces("train"), length, count, seed)

    def evaluation_windows(self, split: str, length: int) -> Windows:
        """Windows one after another."""
        rows = []
        for index, piece in enumerate(self.pieces(split)):
            for start in range(0, len(piece), length):
                rows.append((*_window(piece, start, length), min(length, len(piece) - start), index, start))
        return Windows(*(np.array(column, dtype=np.int64) for column in zip(*rows, strict=True)))

    def ngram_losses(self, *splits: str) -> list[list[np.ndarray]]:
        """By an `Interpolation` of the contexts of 0, 1, ..., 5 symbols back.

        Its weights are fitted on every tenth training piece, with counts from the others; a single piece is cut into
        ten for it.
        """
        pieces = self.pieces("train")
        if len(pieces) == 1:
            pieces = [part for part in np.array_split(pieces[0], FITTED_PARTS) if len(part)]
        count = self.vocabulary.symbols
        ngram = Interpolation.fit([_part(piece) for piece in pieces], range(1, len(pieces), 10), count, count + 1)
        return [[ngram.losses(_part(piece)) for piece in self.pieces(split)] for split in splits]


class RandomWindows(DrawnWindows):
    """`count` random crops of `pieces`, each {"input_ids", "labels"}, int64 [length]; labels[p] follows input_ids[p].

    Example i is a function of (seed, i) alone, drawn by `draw_crop`. A piece shorter than the window is padded.
    """

    def __init__(self, pieces: Sequence[np.ndarray], length: int, count: int, seed: int) -> None:
        super().__init__(count, seed)
        self._pieces, self._length = pieces, length
        self._ends = np.cumsum([len(piece) for piece in pieces])

    def _draw(self, random: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
        chosen, start = draw_crop(random, self._ends, self._length)
        return _window(self._pieces[chosen], start, self._length)


def _window(piece: np.ndarray, start: int, length: int) -> tuple[np.ndarray, np.ndarray]:
    """(input_ids, labels), int64 [length], of the window whose first label is symbol `start`."""
    labels, inputs = np.full(length, IGNORED, dtype=np.int64), np.full(length, BEGIN, dtype=np.int64)
    tokens = piece[start : start + length].astype(np.int64) + 1
    labels[: len(tokens)] = tokens
    inputs[0] = int(piece[start - 1]) + 1 if start else BEGIN
    inputs[1 : len(tokens)] = tokens[:-1]
    return inputs, labels


def _part(piece: np.ndarray) -> Part:
    """The tokens of a piece, and for order k the token k - 1 back; before the piece is "begin"."""
    tokens = piece.astype(np.int64) + 1
    padded = np.pad(tokens, (ORDERS - 1, 0), constant_values=BEGIN)
    back = [padded[ORDERS - 1 - k : ORDERS - 1 - k + len(tokens), None] for k in range(1, ORDERS)]
    return Part(tokens, [np.zeros((len(tokens), 1), dtype=np.int64), *back])
