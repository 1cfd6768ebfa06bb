"""The n-gram: equal to its equation, a distribution, blind to the future, better for its fitted weights."""

import dataclasses
import math
from collections import Counter

import numpy as np
import pytest

from relattn_lab.voices import NGram, Piece, Vocabulary
from tests import seeds
from tests.lab.voices.synthetic import LOW, random_pieces

PIECES = random_pieces(0, [40, 25, 64, 30, 50, 12])
# two pitches a voice, so that the longest contexts come back and end differently
PIECES.insert(1, Piece("plain", (LOW + (seeds.generator(5).random((300, 4)) < 0.2)).astype(np.int16), upbeat=1))
VOCABULARY = Vocabulary.covering(PIECES)


def contexts(piece: Piece, step: int, voice: int) -> list[tuple]:
    """c_1 ... c_8 of the class's docstring, written out: pitches, None before the piece begins."""

    def pitch(back: int, of: int) -> int | None:
        return int(piece.steps[step - back, of]) if step >= back else None

    added = [
        ("voice", voice),
        (pitch(1, voice),),
        ((step - piece.upbeat) % 4,),
        tuple(pitch(0, of) for of in range(voice)[-1:]),
        tuple(pitch(0, of) for of in range(voice)[:-1]),
        tuple(pitch(1, of) for of in range(voice)),
        tuple(pitch(1, of) for of in range(voice + 1, 4)),
        tuple(pitch(back, voice) for back in (2, 3, 4)),
    ]
    return [tuple(added[: k + 1]) for k in range(len(added))]


def plain_losses(train: list[Piece], weights: np.ndarray, piece: Piece) -> list[float]:
    counts, pairs = Counter(), Counter()
    for one in train:
        for step in range(len(one.steps)):
            for voice in range(4):
                for context in contexts(one, step, voice):
                    counts[context] += 1
                    pairs[context, int(one.steps[step, voice])] += 1
    losses = []
    for step in range(len(piece.steps)):
        for voice in range(4):
            probability = 1 / (VOCABULARY.high - VOCABULARY.low + 2)
            for level, context in enumerate(contexts(piece, step, voice)):
                if counts[context]:
                    weight = weights[level, min(counts[context].bit_length(), weights.shape[1] - 1)]
                    share = pairs[context, int(piece.steps[step, voice])] / counts[context]
                    probability = weight * share + (1 - weight) * probability
            losses.append(-math.log(probability))
    return losses


def test_the_losses_are_the_equation():
    model = NGram.fit(PIECES[:4], VOCABULARY)
    for piece in PIECES:
        np.testing.assert_allclose(
            model.losses(piece), plain_losses(PIECES[:4], model.counts.weights, piece), rtol=1e-12
        )
    every = np.concatenate([model.losses(piece) for piece in PIECES])
    assert model.evaluate(PIECES) == pytest.approx(every.mean(), rel=1e-14)


@pytest.mark.parametrize("voice", range(4))
def test_the_probabilities_of_all_tokens_sum_to_one(voice):
    model = NGram.fit(PIECES, VOCABULARY)
    piece, step = PIECES[0], 9
    total = 0.0
    for pitch in [-1, *range(VOCABULARY.low, VOCABULARY.high + 1)]:
        steps = piece.steps.copy()
        steps[step, voice] = pitch
        total += math.exp(-model.losses(Piece("changed", steps, upbeat=piece.upbeat))[4 * step + voice])
    assert total == pytest.approx(1, rel=1e-12)


def test_no_loss_looks_ahead():
    model = NGram.fit(PIECES, VOCABULARY)
    piece, other = PIECES[0], PIECES[3]
    for token in (1, 7, 50, 99):
        mixed = piece.steps.ravel().copy()
        mixed[token:] = other.steps.ravel()[token : len(mixed)]
        changed = Piece("changed", mixed.reshape(-1, 4), upbeat=piece.upbeat)
        assert not np.array_equal(changed.steps, piece.steps)
        assert np.array_equal(model.losses(changed)[:token], model.losses(piece)[:token])


def test_the_fitted_weights_are_better_than_halves():
    train, held_out = random_pieces(1, [60] * 40), random_pieces(2, [60] * 5)
    vocabulary = Vocabulary.covering(train + held_out)
    model = NGram.fit(train, vocabulary)
    assert ((model.counts.weights >= 0) & (model.counts.weights < 1)).all()
    assert (model.counts.weights[:, 0] == 0).all()
    half = np.where(np.arange(model.counts.weights.shape[1]) == 0, 0.0, 0.5) + 0 * model.counts.weights
    halves = dataclasses.replace(model, counts=dataclasses.replace(model.counts, weights=half))
    assert model.evaluate(held_out) < halves.evaluate(held_out) - 0.1


def test_it_learns_what_repeats():
    train, held_out = random_pieces(3, [200] * 30, silence=0.0), random_pieces(4, [200] * 10, silence=0.0)
    model = NGram.fit(train, Vocabulary.covering(train))
    # the source: a pitch stays with probability 0.6 + 0.4 / 12, else it is one of the 11 others
    stays = np.concatenate([(piece.steps[1:] == piece.steps[:-1]).ravel() for piece in held_out])
    true_loss = -np.where(stays, math.log(0.6 + 0.4 / 12), math.log(0.4 / 12)).mean()
    learnt = np.concatenate([model.losses(piece)[4:] for piece in held_out]).mean()
    # 4 voices x 12 pitches x 11 free probabilities from 24,000 tokens cost 528 / 48,000 nats; four times that for the
    # longer contexts, which hold nothing but noise here
    assert true_loss < learnt < true_loss + 4 * 528 / 48_000


def test_a_single_melody_leaves_halves():
    model = NGram.fit(PIECES[:1], VOCABULARY)
    assert (model.counts.weights[:, 1:] == 0.5).all()
    assert np.isfinite(model.evaluate(PIECES))


def test_bad_input():
    with pytest.raises(ValueError, match="pieces: got none; expected at least one piece"):
        NGram.fit([], VOCABULARY)
    with pytest.raises(ValueError, match=r"expected 60\.\.61, which the vocabulary holds"):
        NGram.fit(PIECES, Vocabulary(60, 61))
