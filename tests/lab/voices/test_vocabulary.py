"""Vocabulary and transposition."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from relattn.errors import ShapeError
from relattn_lab.voices import Piece, Vocabulary, transpose, transpositions, voice_ranges
from tests.lab.voices.synthetic import random_pieces

STEPS = hnp.arrays(np.int16, st.tuples(st.integers(1, 9), st.just(4)), elements=st.sampled_from([-1, *range(40, 61)]))
VOCABULARY = Vocabulary(40, 60)


def test_the_tokens_by_hand():
    steps = np.array([[60, -1, 41, 40], [60, 50, 41, 40]])
    assert VOCABULARY.size == 23
    assert VOCABULARY.encode(steps).tolist() == [22, 1, 3, 2, 22, 12, 3, 2]
    assert VOCABULARY.encode(steps).dtype == np.int64


@given(STEPS)
def test_decode_undoes_encode(steps):
    tokens = VOCABULARY.encode(steps)
    for given_tokens in (tokens, np.concatenate([[VOCABULARY.begin], tokens])):
        decoded = VOCABULARY.decode(given_tokens)
        assert decoded.dtype == np.int16
        assert np.array_equal(decoded, steps)


@given(STEPS, st.integers(1, 3))
def test_a_last_partial_step_is_silent_in_the_missing_voices(steps, missing):
    decoded = VOCABULARY.decode(VOCABULARY.encode(steps)[:-missing])
    assert np.array_equal(decoded[:-1], steps[:-1])
    assert decoded[-1].tolist() == [*steps[-1, : 4 - missing].tolist(), *[-1] * missing]


def test_covering():
    pieces = random_pieces(0, [30, 40])
    vocabulary = Vocabulary.covering(pieces)
    pitches = np.concatenate([piece.steps for piece in pieces])
    assert (vocabulary.low, vocabulary.high) == (pitches[pitches >= 0].min(), pitches.max())
    for nothing in ([], [Piece("silent", np.full((2, 4), -1))]):
        with pytest.raises(ValueError, match=f"got {len(nothing)} without any note; expected at least one note"):
            Vocabulary.covering(nothing)


@pytest.mark.parametrize(("low", "high"), [(-1, 60), (60, 128), (61, 60)])
def test_bad_vocabulary(low, high):
    with pytest.raises(ValueError, match=f"got low={low}, high={high}; expected 0 <= low <= high <= 127"):
        Vocabulary(low, high)


def test_encode_refuses_a_pitch_it_has_no_token_for():
    for pitch in (39, 61):
        with pytest.raises(ValueError, match=rf"got pitch {pitch} for the tenor at step 1; expected 40\.\.60, which"):
            VOCABULARY.encode(np.array([[50] * 4, [50, 50, pitch, 50]]))


@pytest.mark.parametrize(
    ("tokens", "error", "text"),
    [
        ([5, 6, 0, 7], ValueError, "got 0 at place 2; expected 1..22, a pitch or silence"),
        ([0, 0, 7], ValueError, "0 at place 1"),
        ([5, 23], ValueError, "23 at place 1"),
        ([-1], ValueError, "-1 at place 0"),
        ([5.0], TypeError, "got float64; expected integers"),
        ([[5]], ShapeError, "got shape [1, 1]; expected one dimension"),
        ([0], ShapeError, 'got 1 in all; expected at least one after "begin"'),
        (np.empty(0, dtype=int), ShapeError, "got 0 in all"),
    ],
)
def test_decode_refuses(tokens, error, text):
    with pytest.raises(error) as caught:
        VOCABULARY.decode(np.array(tokens))
    assert text in str(caught.value)


def test_ranges_and_moves_by_hand():
    seen = [Piece("a", np.array([[70, 60, 50, -1], [72, -1, 55, -1]])), Piece("b", np.array([[65, 58, 52, -1]]))]
    ranges = voice_ranges(seen)
    assert ranges.tolist() == [[65, 72], [58, 60], [50, 55], [128, -1]]
    assert list(transpositions(np.array([[70, 59, 50, -1]]), ranges)) == [0, 1]
    assert list(transpositions(np.array([[70, -1, 52, -1]]), ranges)) == [-2, -1, 0, 1, 2]
    assert list(transpositions(np.array([[73, -1, 53, -1]]), ranges)) == [-3, -2, -1]
    assert list(transpositions(np.array([[65, 60, 50, -1], [72, 58, 50, -1]]), ranges)) == [0]
    assert list(transpositions(np.array([[65, 40, 50, -1]]), ranges)) == []
    assert list(transpositions(np.full((2, 4), -1), ranges)) == [0]


def test_moves_are_exactly_those_that_stay_in_range():
    pieces = random_pieces(3, [40, 6, 6, 6])
    ranges = voice_ranges(pieces)
    for piece in pieces:
        staying = [
            n
            for n in range(-40, 41)
            if all(
                ranges[voice, 0] <= pitch + n <= ranges[voice, 1]
                for voice in range(4)
                for pitch in piece.steps[:, voice]
                if pitch >= 0
            )
        ]
        assert list(transpositions(piece.steps, ranges)) == staying
        assert 0 in staying


def test_transpose_keeps_silence():
    steps = np.array([[60, -1, 0, 127]])
    assert transpose(steps, 0).tolist() == steps.tolist()
    assert transpose(steps[:, :2], 5).tolist() == [[65, -1]]
    for semitones in (1, -1):
        with pytest.raises(
            ValueError, match=f"semitones: got {semitones}; expected a move that stays within the MIDI pitches"
        ):
            transpose(steps, semitones)
