"""Where the tokens of four voices stand: their steps and pitches, as the pieces have them."""

import numpy as np
import pytest
import torch

from relattn.encodings.catalogue import Layer
from relattn_lab.encodings import build_encoding, lab_options
from relattn_lab.voices.cutting import evaluation_windows
from relattn_lab.voices.pieces import SILENCE
from relattn_lab.voices.places import places_of, steps_within
from relattn_lab.voices.vocabulary import Vocabulary
from tests.lab.voices.synthetic import random_pieces

PIECES = random_pieces(0, [9, 33, 20], silence=0.3)
VOCABULARY = Vocabulary(30, 90)
WINDOWS = evaluation_windows(PIECES, VOCABULARY, 32)
BEGIN = "begin"


def told(piece: np.ndarray, start: int, filled: int) -> list[tuple[int, object]]:
    """(step counted from the window's first, pitch, SILENCE or BEGIN) of every input before the padding."""
    every = [(step, pitch) for step, voices in enumerate(piece.tolist()) for pitch in voices]
    before = (-1, every[4 * start - 1][1] if start else BEGIN)
    return [before, *((step - start, pitch) for step, pitch in every[4 * start : 4 * start + filled - 1])]


def expanded(place, length: int) -> list[int]:
    return (place if isinstance(place, torch.Tensor) else place.expand(length, torch.device("cpu"))).tolist()


def test_every_input_stands_at_its_step_and_pitch():
    for row, (piece, start, filled) in enumerate(zip(WINDOWS.piece, WINDOWS.start, WINDOWS.lengths, strict=True)):
        tokens = torch.from_numpy(WINDOWS.input_ids[row : row + 1, :filled])
        found, expected = places_of(tokens, 0), told(PIECES[piece].steps, int(start), int(filled))
        assert expanded(found["time"], int(filled)) == [step for step, _ in expected]
        (standing,) = found["pitch"].tolist()
        for there, (_, pitch) in zip(standing, expected, strict=True):
            for here, (_, other) in zip(standing, expected, strict=True):
                if pitch == other:
                    assert there == here
                elif {pitch, other} & {SILENCE, BEGIN}:
                    assert abs(there - here) > 127
                else:
                    assert there - here == pitch - other


def test_the_windows_of_this_test_hold_all_that_may_come():
    pitches = [pitch for piece, start in zip(WINDOWS.piece, WINDOWS.start, strict=True)
               for _, pitch in told(PIECES[piece].steps, int(start), 32)]  # fmt: skip
    assert {BEGIN, SILENCE} < set(pitches)
    assert {0} < set(WINDOWS.start.tolist())


@pytest.mark.parametrize("seen", [0, 1, 3, 4, 30])
def test_a_part_of_a_window_stands_where_it_stands_in_the_whole(seen):
    tokens = torch.from_numpy(WINDOWS.input_ids[:2])
    whole, part = places_of(tokens, 0), places_of(tokens[:, seen:], seen)
    assert part["time"] == whole["time"].part(slice(seen, 32))
    assert expanded(part["time"], 32 - seen) == expanded(whole["time"], 32)[seen:]
    assert torch.equal(part["pitch"], whole["pitch"][:, seen:])


def test_rows_that_do_not_begin_together_are_placed_by_their_own_numbers():
    tokens, numbers = torch.zeros(2, 9, dtype=torch.long), torch.tensor([list(range(9)), [0, 0, 0, *range(6)]])
    time = places_of(tokens, 5, numbers)["time"]
    assert time.tolist() == [[-1, 0, 0, 0, 0, 1, 1, 1, 1], [-1, -1, -1, -1, 0, 0, 0, 0, 1]]


@pytest.mark.parametrize("length", [1, 2, 4, 5, 6, 32, 256])
def test_every_distance_in_a_window_has_a_row(length):
    tokens = torch.zeros(1, length, dtype=torch.long)
    times = expanded(places_of(tokens, 0)["time"], length)
    assert steps_within(length) == len(set(times)) == times[-1] - times[0] + 1
    encoding = build_encoding(
        "relative+pitch+time", Layer(2, 8, length, causal=True), lab_options("relative+pitch+time", length)
    )
    assert [len(rows[0]) for rows in encoding.parameters()] == [length, len(set(times)), 255]
