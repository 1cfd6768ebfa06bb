"""An interpolated n-gram over four-part music: the baseline that every model must beat."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from relattn_lab.interpolation import Interpolation, Part
from relattn_lab.voices.pieces import STEPS_PER_BEAT, VOICES, Piece
from relattn_lab.voices.split import melody_groups
from relattn_lab.voices.vocabulary import Vocabulary


@dataclass(frozen=True, eq=False)
class NGram:
    """The `Interpolation` of growing contexts, over silence and the pitches.

    The contexts grow. Context 1 is the voice's name alone. Context n adds:

    2  its own pitch one step earlier        6  the higher voices one step earlier
    3  the place in the beat                 7  the lower voices one step earlier
    4  the nearest higher voice now          8  its own pitches two to four steps earlier
    5  the other higher voices now
    """

    vocabulary: Vocabulary
    counts: Interpolation

    @classmethod
    def fit(cls, pieces: Sequence[Piece], vocabulary: Vocabulary) -> NGram:
        """The model of `pieces` (training pieces only), in seconds.

        The weights are fitted on every tenth melody group of `pieces`, with counts from the others; the counts are then
        taken anew from all. With a single melody there is nothing to fit on, and all weights are 1/2.

        Raises ValueError: for no pieces.
        """
        if not pieces:
            raise ValueError("pieces: got none; expected at least one piece")
        held_out = {index for group in melody_groups(pieces)[1::10] for index in group}
        parts = [_part(piece, vocabulary) for piece in pieces]
        alphabet = max(vocabulary.size, len(VOICES))
        return cls(vocabulary, Interpolation.fit(parts, held_out, vocabulary.size - 1, alphabet))

    def losses(self, piece: Piece) -> np.ndarray:
        """-ln p of each token of `piece`, in the order of `Vocabulary.encode`: float64 [4 T], in nats."""
        return self.counts.losses(_part(piece, self.vocabulary))

    def evaluate(self, pieces: Sequence[Piece]) -> float:
        """The mean loss over all tokens of `pieces`, in nats per token."""
        return float(np.concatenate([self.losses(piece) for piece in pieces]).mean())


def _part(piece: Piece, vocabulary: Vocabulary) -> Part:
    """The tokens [4 T] of a piece, and the contexts' columns.

    Steps before the piece, and voices that do not exist, are "begin".
    """
    grid = vocabulary.encode(piece.steps).reshape(-1, len(VOICES))
    length = len(grid)
    padded = np.pad(grid, ((4, 0), (0, 0)), constant_values=vocabulary.begin)
    now, before = grid, padded[3 : 3 + length]
    nothing = np.full((length, len(VOICES)), vocabulary.begin)
    beat = (np.arange(length) - piece.upbeat) % STEPS_PER_BEAT

    per_voice = []
    for voice in range(len(VOICES)):
        # voices above, nearest first, then a place for each of those that a lower voice has more
        above, above_before = (
            np.concatenate([source[:, :voice][:, ::-1], nothing[:, voice + 1 :]], axis=1) for source in (now, before)
        )
        below_before = np.concatenate([before[:, voice + 1 :], nothing[:, :voice]], axis=1)
        own = [padded[4 - back : 4 - back + length, voice] for back in (2, 3, 4)]
        per_voice.append(
            [
                np.full((length, 1), voice),
                before[:, voice : voice + 1],
                beat[:, None],
                above[:, :1],
                above[:, 1:],
                above_before,
                below_before,
                np.stack(own, axis=1),
            ]
        )
    levels = [np.stack(columns, axis=1).reshape(len(VOICES) * length, -1) for columns in zip(*per_voice, strict=True)]
    return Part(grid.ravel(), levels)
