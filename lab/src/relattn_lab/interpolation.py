"""Interpolated counts: the mathematics of the n-grams, for contexts of any kind."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

BUCKETS = 13
EM_ROUNDS = 40


class Part(NamedTuple):
    """`tokens` int64 [n], and for each level the symbols that it adds to the context of every token, int64 [n, m]."""

    tokens: np.ndarray
    columns: Sequence[np.ndarray]


@dataclass(frozen=True, eq=False)
class Level:
    """Counts of one order: its contexts (sorted codes, how often each), and (context, token) pairs likewise."""

    contexts: np.ndarray
    context_counts: np.ndarray
    pairs: np.ndarray
    pair_counts: np.ndarray


@dataclass(frozen=True, eq=False)
class Interpolation:
    """p_k(x) = w_k count(c_k, x) / count(c_k) + (1 - w_k) p_{k-1}(x), from p_0 = 1 / outcomes.

    The contexts c_1, c_2, ... grow, each by the columns of its level. The weight w_k depends on k and on the size of
    count(c_k) (in powers of two), and is 0 for a context never seen (Jelinek and Mercer 1980, "Interpolated estimation
    of Markov source parameters from sparse data").

    outcomes: how many tokens can come. alphabet: above every token and every symbol of a column.
    """

    outcomes: int
    alphabet: int
    levels: tuple[Level, ...]
    weights: np.ndarray

    @classmethod
    def fit(cls, parts: Sequence[Part], held_out: Collection[int], outcomes: int, alphabet: int) -> Interpolation:
        """The model of `parts`: weights by expectation maximisation on those whose index is held out, counts of all.

        While the weights are fitted, the counts are those of the other parts. With nothing held out all weights are
        1/2.
        """
        counted = _count([part for index, part in enumerate(parts) if index not in held_out], alphabet)
        weights = _fit_weights(counted, [parts[index] for index in sorted(held_out)], outcomes, alphabet)
        return cls(outcomes, alphabet, counted if not held_out else _count(parts, alphabet), weights)

    def losses(self, part: Part) -> np.ndarray:
        """-ln p of each token: float64 [n], in nats."""
        probability = np.full(len(part.tokens), 1 / self.outcomes)
        for (counts, estimate), weights in zip(_estimates(self.levels, part, self.alphabet), self.weights, strict=True):
            probability = _mix(weights[_bucket(counts)], estimate, probability)
        return -np.log(probability)


def _joined(parts: Sequence[Part]) -> Part:
    levels = zip(*(part.columns for part in parts), strict=True)
    return Part(np.concatenate([part.tokens for part in parts]), [np.concatenate(level) for level in levels])


def _code(parents: np.ndarray, columns: np.ndarray, alphabet: int) -> np.ndarray:
    """One number for (parent context, up to three symbols), -1 where the parent is -1 (unseen)."""
    code = parents
    for column in columns.T:
        code = code * alphabet + column
    return np.where(parents < 0, -1, code)


def _count(parts: Sequence[Part], alphabet: int) -> tuple[Level, ...]:
    tokens, columns = _joined(parts)
    contexts = np.zeros(len(tokens), dtype=np.int64)
    levels = []
    for added in columns:
        codes = _code(contexts, added, alphabet)
        keys, contexts, counts = np.unique(codes, return_inverse=True, return_counts=True)
        levels.append(Level(keys, counts, *np.unique(contexts * alphabet + tokens, return_counts=True)))
    return tuple(levels)


def _estimates(levels: Sequence[Level], part: Part, alphabet: int) -> list[tuple[np.ndarray, np.ndarray]]:
    """For each level (count(c) [n], count(c, x) / count(c) [n]), the second 0 for a context never seen."""
    contexts = np.zeros(len(part.tokens), dtype=np.int64)
    estimates = []
    for level, added in zip(levels, part.columns, strict=True):
        contexts = _find(level.contexts, _code(contexts, added, alphabet))
        counts = np.where(contexts < 0, 0, level.context_counts[contexts])
        pairs = _find(level.pairs, np.where(contexts < 0, -1, contexts * alphabet + part.tokens))
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


def _fit_weights(levels: Sequence[Level], parts: Sequence[Part], outcomes: int, alphabet: int) -> np.ndarray:
    """The weights [levels, buckets] that make `parts` most likely, from the lowest level up; 1/2 without evidence."""
    weights = np.full((len(levels), BUCKETS), 0.5)
    weights[:, 0] = 0
    if not parts:
        return weights
    joined = _joined(parts)
    below = np.full(len(joined.tokens), 1 / outcomes)
    for level, (counts, estimate) in enumerate(_estimates(levels, joined, alphabet)):
        bucket = _bucket(counts)
        total = np.bincount(bucket, minlength=BUCKETS)
        for _ in range(EM_ROUNDS):
            weight = weights[level, bucket]
            share = weight * estimate / _mix(weight, estimate, below)
            # half an observation for either side: a bucket seen once does not get a weight of exactly 0 or 1
            weights[level, 1:] = ((np.bincount(bucket, share, BUCKETS) + 0.5) / (total + 1))[1:]
        below = _mix(weights[level, bucket], estimate, below)
    return weights
