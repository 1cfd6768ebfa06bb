"""Windows: what follows what, every token once, one piece per window."""

import numpy as np
import pytest

from relattn_lab.voices import (
    Piece,
    TrainingWindows,
    Vocabulary,
    evaluation_windows,
    transpose,
    transpositions,
    voice_ranges,
)
from relattn_lab.windows import IGNORED, batches
from tests.lab.voices.synthetic import random_pieces

PIECES = random_pieces(0, [3, 17, 32, 33, 70, 1])
VOCABULARY = Vocabulary.covering(PIECES)


def stream(piece: Piece) -> list[int]:
    return [VOCABULARY.begin, *VOCABULARY.encode(piece.steps).tolist()]


@pytest.mark.parametrize("context", [0, 4, 16, 60])
def test_every_token_is_a_label_once_and_follows_its_input(context):
    windows = evaluation_windows(PIECES, VOCABULARY, 64, context)
    assert windows.input_ids.dtype == windows.labels.dtype == np.int64
    counted = [np.zeros(piece.steps.size, dtype=int) for piece in PIECES]
    for inputs, labels, length, piece, start in zip(
        windows.input_ids, windows.labels, windows.lengths, windows.piece, windows.start, strict=True
    ):
        tokens = stream(PIECES[piece])
        assert inputs[:length].tolist() == tokens[4 * start : 4 * start + length]
        assert (labels[length:] == IGNORED).all()
        for p in np.flatnonzero(labels != IGNORED):
            assert labels[p] == tokens[4 * start + p + 1]
            counted[piece][4 * start + p] += 1
            assert start == 0 or p >= context
    assert all((times == 1).all() for times in counted)


def test_no_window_without_a_label():
    for context in (0, 4, 16, 60):
        windows = evaluation_windows(PIECES, VOCABULARY, 64, context)
        assert ((windows.labels != IGNORED).sum(axis=1) > 0).all()


def test_begin_stands_only_where_a_piece_begins():
    windows = evaluation_windows(PIECES, VOCABULARY, 64)
    assert np.array_equal(windows.input_ids[:, 0] == VOCABULARY.begin, windows.start == 0)
    assert not (windows.input_ids[:, 1:] == VOCABULARY.begin).any()
    assert not (windows.labels == VOCABULARY.begin).any()


def test_the_same_tokens_at_every_length():
    lengths = {n: evaluation_windows(PIECES, VOCABULARY, n) for n in (32, 64, 128)}
    assert [windows.labels.shape[1] for windows in lengths.values()] == list(lengths) == [32, 64, 128]
    counts = [np.bincount(windows.labels[windows.labels != IGNORED]) for windows in lengths.values()]
    assert counts[0].sum() == sum(piece.steps.size for piece in PIECES)
    assert np.array_equal(counts[0], counts[1])
    assert np.array_equal(counts[0], counts[2])


def test_batches_hold_every_window_once_without_needless_padding():
    windows = evaluation_windows(PIECES, VOCABULARY, 64)
    seen = []
    for batch in batches(windows, 3):
        assert len(batch.labels) <= 3
        assert batch.labels.shape == batch.input_ids.shape == (len(batch.lengths), batch.lengths.max())
        for row in range(len(batch.lengths)):
            seen.append((batch.piece[row], batch.start[row]))
            tokens = stream(PIECES[batch.piece[row]])[4 * batch.start[row] :]
            length = batch.lengths[row]
            assert batch.input_ids[row, :length].tolist() == tokens[:length]
            assert batch.labels[row, :length].tolist() == tokens[1 : length + 1]
    assert sorted(seen) == sorted(zip(windows.piece, windows.start, strict=True))
    with pytest.raises(ValueError, match="batch_size: got 0; expected at least 1"):
        next(batches(windows, 0))


def places(example: dict[str, np.ndarray]) -> list[tuple[int, int]]:
    """Every (piece, start) that an example may have been cut from, at some allowed transposition."""
    ranges = voice_ranges(PIECES)
    length = int((example["labels"] != IGNORED).sum())
    found = []
    for index, piece in enumerate(PIECES):
        for semitones in transpositions(piece.steps, ranges):
            tokens = [VOCABULARY.begin, *VOCABULARY.encode(transpose(piece.steps, semitones)).tolist()]
            for start in range(len(piece.steps)):
                window = tokens[4 * start : 4 * start + len(example["labels"]) + 1]
                if window == [
                    *example["input_ids"][:length].tolist(),
                    *example["labels"][length - 1 : length].tolist(),
                ]:
                    assert example["labels"][:length].tolist() == window[1:]
                    found.append((index, start))
    return found


def test_training_windows_are_crops_of_one_transposed_piece():
    windows = TrainingWindows(PIECES, VOCABULARY, 64, count=300, seed=5)
    assert len(windows) == 300
    seen = set()
    for index in range(300):
        example = windows[index]
        assert {key: (value.dtype, value.shape) for key, value in example.items()} == {
            "input_ids": (np.int64, (64,)),
            "labels": (np.int64, (64,)),
        }
        found = places(example)
        assert found
        seen.update(found)
        length = int((example["labels"] != IGNORED).sum())
        assert (example["labels"][:length] != IGNORED).all()
        assert length == min(64, 4 * len(PIECES[found[0][0]].steps))
        assert (example["input_ids"][length:] == VOCABULARY.silence).all()
    # the longest piece: from its first window to its last
    starts = {start for piece, start in seen if piece == 4}
    assert {0, 70 - 16} <= starts
    assert len(starts) > 25
    assert {piece for piece, _ in seen} >= {0, 1, 2, 3, 4}


def test_transpositions_are_drawn():
    piece = Piece("short", np.array([[70, 60, 50, 40]]))
    other = Piece("wide", np.array([[68, 58, 48, 38], [73, 63, 53, 43]] * 20))
    vocabulary = Vocabulary.covering([piece, other])
    windows = TrainingWindows([piece, other], vocabulary, 4, count=2000, seed=0)
    sopranos = {int(example["labels"][0]) - 2 + 38 for example in map(windows.__getitem__, range(2000))}
    assert sopranos == set(range(68, 74))


def test_an_example_depends_on_seed_and_index_alone():
    def examples(count: int, seed: int, order: range) -> dict[int, bytes]:
        windows = TrainingWindows(PIECES, VOCABULARY, 16, count, seed)
        return {index: windows[index]["labels"].tobytes() for index in order}

    first = examples(50, 1, range(50))
    assert examples(80, 1, range(49, -1, -1)) == first
    assert examples(50, 2, range(50)) != first
    assert len(set(first.values())) > 25


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({"pieces": []}, "pieces: got none; expected at least one piece"),
        ({"length": 62}, "length: got 62; expected a positive multiple of 4 .*"),
        ({"length": 0}, "length: got 0; expected a positive multiple of 4 .*"),
        ({"count": 0}, "count: got 0; expected at least one window"),
        ({"seed": -1}, "seed: got -1; expected an integer of at least 0"),
        ({"vocabulary": Vocabulary(60, 61)}, "expected 60..61, which the vocabulary holds"),
    ],
)
def test_bad_training_windows(change, text):
    arguments = {"pieces": PIECES, "vocabulary": VOCABULARY, "length": 64, "count": 1, "seed": 0, **change}
    with pytest.raises(ValueError, match=text):
        TrainingWindows(**arguments)


def test_an_index_past_the_end():
    windows = TrainingWindows(PIECES, VOCABULARY, 64, count=2, seed=0)
    for index in (2, -1):
        with pytest.raises(IndexError, match=rf"got {index}; expected 0\.\.1"):
            windows[index]


@pytest.mark.parametrize("context", [-4, 3, 64, 68])
def test_bad_context(context):
    with pytest.raises(ValueError, match=rf"context: got {context}; expected a multiple of 4 within 0\.\.60 .*"):
        evaluation_windows(PIECES, VOCABULARY, 64, context)


def test_evaluation_needs_pieces():
    with pytest.raises(ValueError, match="pieces: got none; expected at least one piece"):
        evaluation_windows([], VOCABULARY, 64)
