"""Piece, MusicData, load_music: what they hold and what they refuse."""

import numpy as np
import pytest

from relattn.errors import ShapeError
from relattn_lab.voices import MusicData, Piece, load_music
from tests.lab.voices.synthetic import random_pieces


def test_a_piece_is_its_own_read_only_copy():
    steps = np.full((3, 4), 60)
    piece = Piece("p", steps)
    steps[0, 0] = 1
    assert piece.steps.dtype == np.int16
    assert (piece.steps == 60).all()
    with pytest.raises(ValueError, match="read-only"):
        piece.steps[0, 0] = 1


@pytest.mark.parametrize(
    ("steps", "error", "text"),
    [
        ([[60, 60, 60, 60]], TypeError, "piece 'p': got list; expected a NumPy array of integers [steps, 4]"),
        (np.full((2, 4), 60.0), TypeError, "got an array of float64; expected a NumPy array of integers [steps, 4]"),
        (np.full((2, 4), True), TypeError, "got an array of bool"),
        (np.full((2, 3), 60), ShapeError, "got shape [2, 3]; expected [steps, 4] with at least one step"),
        (np.full(4, 60), ShapeError, "got shape [4]"),
        (np.empty((0, 4), dtype=int), ShapeError, "got shape [0, 4]"),
        (
            np.array([[60] * 4, [60, 60, 128, 60]]),
            ValueError,
            "got 128 for the tenor at step 1; expected a MIDI pitch 0..127",
        ),
        (np.array([[60, -2, 60, 60]]), ValueError, "got -2 for the alto at step 0"),
        (np.array([[60, 60, 60, 65596]]), ValueError, "got 65596 for the bass at step 0"),
    ],
)
def test_bad_steps(steps, error, text):
    with pytest.raises(error) as caught:
        Piece("p", steps)
    assert text in str(caught.value)


@pytest.mark.parametrize(
    ("metre", "text"),
    [
        ({"upbeat": 16}, "got upbeat=16; expected 0..15, less than a bar"),
        ({"upbeat": -1}, "got upbeat=-1; expected 0..15, less than a bar"),
        ({"bar_steps": 0}, "got bar_steps=0; expected at least 1"),
    ],
)
def test_bad_metre(metre, text):
    with pytest.raises(ValueError, match=text):
        Piece("p", np.full((2, 4), 60), **metre)


def test_splits():
    a, b, c = random_pieces(0, [8, 8, 8])
    data = MusicData("d", (a,), (b,), (c,))
    assert [data.split(name) for name in ("train", "valid", "test")] == [(a,), (b,), (c,)]
    assert data.pieces == (a, b, c)
    with pytest.raises(ValueError, match="split: got 'dev'; expected one of train, valid, test"):
        data.split("dev")
    with pytest.raises(ValueError, match="with nothing in the split 'valid'"):
        MusicData("d", (a,), (), (c,))


def test_load_music_names_what_it_knows():
    with pytest.raises(
        FileNotFoundError, match=r"got 'chorale', which is not there; expected \"chorales\" or the path of a JSON file"
    ):
        load_music("chorale")


def test_load_music_of_a_folder(tmp_path):
    with pytest.raises(IsADirectoryError) as caught:
        load_music(tmp_path)
    assert str(caught.value) == (
        f"data: got '{tmp_path}', which is a folder; expected \"chorales\" or the path of a JSON file"
    )
