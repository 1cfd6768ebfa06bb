"""The split: no melody on two sides, about 80 / 10 / 10, the same for every order of the pieces."""

import itertools

import numpy as np
import pytest

from relattn_lab.voices.pieces import SPLITS, MusicData, Piece
from relattn_lab.voices.split import held_soprano, melody_groups, split_pieces, tune
from tests.lab.voices.synthetic import random_pieces


def opening_intervals(piece: Piece) -> list[int]:
    """The soprano's first 64 steps as intervals, written out anew: rests hold, a first rest waits."""
    pitches: list[int] = []
    for pitch in piece.steps[:64, 0].tolist():
        pitches.append(pitch if pitch >= 0 or not pitches else pitches[-1])
    first = next(pitch for pitch in pitches if pitch >= 0)
    pitches = [first if pitch < 0 else pitch for pitch in pitches]
    return [int(b - a) for a, b in itertools.pairwise(pitches)]


def assert_no_tune_on_two_sides(data: MusicData) -> None:
    tunes = {name: {tuple(opening_intervals(piece)) for piece in data.split(name)} for name in SPLITS}
    for one, other in itertools.combinations(SPLITS, 2):
        assert not tunes[one] & tunes[other]


def variants(pieces: list[Piece], semitones: int) -> list[Piece]:
    """The same melodies, transposed, over other lower voices."""
    varied = []
    for piece in pieces:
        steps = np.where(piece.steps < 0, -1, piece.steps + semitones)
        steps[:, 1:] = steps[::-1, 1:]
        varied.append(Piece(f"{piece.name} moved by {semitones}", steps))
    return varied


def test_held_soprano():
    steps = np.zeros((7, 4), dtype=np.int16)
    steps[:, 0] = [-1, -1, 60, -1, 62, -1, -1]
    assert held_soprano(steps).tolist() == [60, 60, 60, 60, 62, 62, 62]
    steps[:, 0] = -1
    assert held_soprano(steps).tolist() == [-1] * 7


def test_a_tune_is_its_intervals():
    (piece,) = random_pieces(1, [100])
    (moved,) = variants([piece], 5)
    assert np.frombuffer(tune(piece.steps), "<i2").tolist() == opening_intervals(piece)
    assert tune(moved.steps) == tune(piece.steps)
    assert tune(piece.steps[:64]) == tune(piece.steps)
    assert tune(piece.steps[1:]) != tune(piece.steps)


def test_the_split_keeps_tunes_apart():
    pieces = random_pieces(2, [80] * 60)
    pieces += variants(pieces[:40], 3) + variants(pieces[20:50], -4)
    data = split_pieces("d", pieces)
    assert_no_tune_on_two_sides(data)
    assert sorted(piece.name for piece in data.pieces) == sorted(piece.name for piece in pieces)
    # a side is filled until it holds its tenth; the group that fills it has at most three pieces here
    for name in ("valid", "test"):
        assert 13 <= len(data.split(name)) <= 15


def test_a_split_that_parts_a_tune_is_found_out():
    a, b, c = random_pieces(3, [80] * 3)
    assert_no_tune_on_two_sides(MusicData("d", (a,), (b,), (c,)))
    with pytest.raises(AssertionError):
        assert_no_tune_on_two_sides(MusicData("d", (a,), (b,), (c, *variants([a], 2))))


def test_the_split_does_not_depend_on_the_order():
    pieces = random_pieces(4, [70] * 40)
    one, other = split_pieces("d", pieces), split_pieces("d", pieces[::-1])
    for name in SPLITS:
        assert {piece.name for piece in one.split(name)} == {piece.name for piece in other.split(name)}


def test_the_split_stays_as_it_is():
    step = np.arange(64)
    sopranos = [60 + (step * step * (n + 3) // 7) % 13 for n in range(20)]
    pieces = [Piece(str(n), np.stack([soprano] * 4, axis=1)) for n, soprano in enumerate(sopranos)]
    data = split_pieces("d", pieces)
    assert [[piece.name for piece in data.split(name)] for name in ("valid", "test")] == [["7", "12"], ["10", "15"]]


def test_ornaments_do_not_hide_a_melody():
    melody, other = random_pieces(6, [64, 64], silence=0.0)  # a rest would hold an ornament on
    sixteen = melody.steps.copy()
    sixteen[::4, 0] = held_soprano(melody.steps)[::4] + 2
    seventeen = sixteen.copy()
    seventeen[1, 0] = held_soprano(melody.steps)[1] + 3
    pieces = [melody, Piece("16 steps ornamented", sixteen), other, Piece("17", seventeen)]
    assert melody_groups(pieces) == [[0, 1, 3], [2]]  # 17 is near 16, and through it in the group
    assert melody_groups([melody, other, Piece("17", seventeen)]) == [[0], [1], [2]]


def test_groups_joined_by_a_later_piece():
    a, b = random_pieces(7, [64, 64])
    steps = a.steps.copy()
    soprano = held_soprano(a.steps)
    ends = [Piece(str(n), steps.copy()) for n in range(3)]
    for n, piece in enumerate(ends):
        moved = soprano.copy()
        moved[: 12 * n] += np.arange(1, 12 * n + 1, dtype=np.int16) % 7 + 1
        changed = piece.steps.copy()
        changed[:, 0] = moved
        ends[n] = Piece(piece.name, changed)
    assert melody_groups([ends[0], b, ends[2]]) == [[0], [1], [2]]
    assert melody_groups([ends[0], b, ends[2], ends[1]]) == [[0, 2, 3], [1]]


def test_short_pieces_and_too_few():
    pieces = random_pieces(8, [1, 3, 10])
    assert melody_groups([]) == []
    assert sum(map(len, melody_groups(pieces))) == 3
    with pytest.raises(ValueError, match="with nothing in the split 'train'"):
        split_pieces("d", random_pieces(9, [80, 80]))
