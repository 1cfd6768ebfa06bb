"""An interpolated n-gram over four-part music: the baseline that every model must beat."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from relattn.lab.music.data import STEPS_PER_BEAT, VOICES, Piece
from relattn.lab.music.split import melody_groups
from relattn.lab.music.tokens import Vocabulary

BUCKETS = 13
EM_ROUNDS = 40


@dataclass(frozen=True, eq=False)
class _Level:
    """Counts of one order: its contexts (sorted codes, how often each), and (context, token) pairs likewise."""

    contexts: np.ndarray
    context_counts: np.ndarray
    pairs: np.ndarray
    pair_counts: np.ndarray


@dataclass(frozen=True, eq=False)
class NGram:
    """p_k(x) = w_k count(c_k, x) / count(c_k) + (1 - w_k) p_{k-1}(x), from p_0 uniform over silence and the pitches.

    The contexts c_1, c_2, ... grow, each by what stands behind its number (all voices are given their voice's name
    first): 1 nothing more, 2 the own pitch one step earlier, 3 the place in the beat, 4 the nearest higher voice now, 5
    the other higher voices now, 6 the higher voices one step earlier, 7 the lower voices one step earlier, 8 the own
    pitches two to four steps earlier. The weight w_k depends on k and on the size of count(c_k) (in powers of two), and
    is 0 for a context never seen (Jelinek and Mercer 1980, "Interpolated estimation of Markov source parameters from
    sparse data").
    """

    vocabulary: Vocabulary
    levels: tuple[_Level, ...]
    weights: np.ndarray

    @classmethod
    def fit(cls, pieces: Sequence[Piece], vocabulary: Vocabulary) -> NGram:
        """The model of `pieces` (training pieces only), in seconds.

        The weights are fitted by expectation maximisation on every tenth melody group of `pieces`, with counts from the
        others; the counts are then taken anew from all. With a single melody there is nothing to fit on, and all
        weights are 1/2. Raises ValueError for no pieces.
        """
        if not pieces:
            raise ValueError("pieces: expected at least one piece, got none")
        held_out = {index for group in melody_groups(pieces)[1::10] for index in group}
        counted = _count([piece for index, piece in enumerate(pieces) if index not in held_out], vocabulary)
        weights = _fit_weights(counted, [pieces[index] for index in sorted(held_out)], vocabulary)
        return cls(vocabulary, counted if not held_out else _count(pieces, vocabulary), weights)

    def losses(self, piece: Piece) -> np.ndarray:
        """-ln p of each token of `piece`, in the order of `Vocabulary.encode`: float64 [4 T], in nats."""
        tokens, columns = _columns(piece, self.vocabulary)
        probability = np.full(len(tokens), 1 / (self.vocabulary.size - 1))
        for (counts, estimate), weights in zip(
            _estimates(self.levels, tokens, columns, self.vocabulary), self.weights, strict=True
        ):
            probability = _mix(weights[_bucket(counts)], estimate, probability)
        return -np.log(probability)

    def evaluate(self, pieces: Sequence[Piece]) -> float:
        """The mean loss over all tokens of `pieces`, in nats per token."""
        return float(np.concatenate([self.losses(piece) for piece in pieces]).mean())


def _columns(piece: Piece, vocabulary: Vocabulary) -> tuple[np.ndarray, list[np.ndarray]]:
    """(tokens int64 [4 T], for each level the symbols it adds to the context, int64 [4 T, n]).

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
    return grid.ravel(), levels


def _code(parents: np.ndarray, columns: np.ndarray, vocabulary: Vocabulary) -> np.ndarray:
    """One number for (parent context, up to three symbols), -1 where the parent is -1 (unseen)."""
    code = parents
    for column in columns.T:
        code = code * max(vocabulary.size, len(VOICES)) + column
    return np.where(parents < 0, -1, code)


def _count(pieces: Sequence[Piece], vocabulary: Vocabulary) -> tuple[_Level, ...]:
    parts = [_columns(piece, vocabulary) for piece in pieces]
    tokens = np.concatenate([part[0] for part in parts])
    contexts = np.zeros(len(tokens), dtype=np.int64)
    levels = []
    for columns in zip(*(part[1] for part in parts), strict=True):
        codes = _code(contexts, np.concatenate(columns), vocabulary)
        keys, contexts, counts = np.unique(codes, return_inverse=True, return_counts=True)
        levels.append(_Level(keys, counts, *np.unique(contexts * vocabulary.size + tokens, return_counts=True)))
    return tuple(levels)


def _estimates(
    levels: Sequence[_Level], tokens: np.ndarray, columns: Sequence[np.ndarray], vocabulary: Vocabulary
) -> list[tuple[np.ndarray, np.ndarray]]:
    """For each level (count(c) [n], count(c, x) / count(c) [n]), the second 0 for a context never seen."""
    contexts = np.zeros(len(tokens), dtype=np.int64)
    estimates = []
    for level, added in zip(levels, columns, strict=True):
        contexts = _find(level.contexts, _code(contexts, added, vocabulary))
        counts = np.where(contexts < 0, 0, level.context_counts[contexts])
        pairs = _find(level.pairs, np.where(contexts < 0, -1, contexts * vocabulary.size + tokens))
        estimates.append((counts, np.where(pairs < 0, 0, level.pair_counts[pairs]) / np.maximum(counts, 1)))
    return estimates


def _find(keys: np.ndarray, wanted: np.ndarray) -> np.ndarray:
    """The place of each of `wanted` in the sorted `keys`, -1 where it is missing."""
    places = np.minimum(np.searchsorted(keys, wanted), len(keys) - 1)
    return np.where(keys[places] == wanted, places, -1)


def _bucket(counts: np.ndarray) -> np.ndarray:
    """0 for 0, 1 for 1, 2 for 2..3, 3 for 4..7, ...: a bucket for each power of two."""
    return np.minimum(np.frexp(counts)[1], BUCKETS - 1)


def _mix(weight: np.ndarray, estimate: np.ndarray, below: np.ndarray) -> np.ndarray:
    return weight * estimate + (1 - weight) * below


def _fit_weights(levels: Sequence[_Level], pieces: Sequence[Piece], vocabulary: Vocabulary) -> np.ndarray:
    """The weights [levels, buckets] that make `pieces` most likely, from the lowest level up; 1/2 without evidence."""
    parts = [_columns(piece, vocabulary) for piece in pieces]
    weights = np.full((len(levels), BUCKETS), 0.5)
    weights[:, 0] = 0
    if not parts:
        return weights
    tokens = np.concatenate([part[0] for part in parts])
    columns = [np.concatenate(level) for level in zip(*(part[1] for part in parts), strict=True)]
    below = np.full(len(tokens), 1 / (vocabulary.size - 1))
    for level, (counts, estimate) in enumerate(_estimates(levels, tokens, columns, vocabulary)):
        bucket = _bucket(counts)
        total = np.bincount(bucket, minlength=BUCKETS)
        for _ in range(EM_ROUNDS):
            weight = weights[level, bucket]
            share = weight * estimate / _mix(weight, estimate, below)
            # half an observation for either side: a bucket seen once does not get a weight of exactly 0 or 1
            weights[level, 1:] = ((np.bincount(bucket, share, BUCKETS) + 0.5) / (total + 1))[1:]
        below = _mix(weights[level, bucket], estimate, below)
    return weights
