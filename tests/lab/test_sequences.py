"""Sequences: their windows, their n-gram, and text."""

import math
from collections import Counter

import numpy as np
import pytest

from relattn_lab.dataset import Dataset
from relattn_lab.media import load_corpus
from relattn_lab.sequences import Sequences
from relattn_lab.support.progress import Silent
from relattn_lab.text.corpus import Bytes, load_text
from relattn_lab.windows import IGNORED
from tests import seeds
from tests.lab.played.synthetic import write_folder, write_midi
from tests.lab.small import write_data

pytest_plugins = ["tests.lab.played.apart"]

PIECES = [seeds.generator(n).integers(0, 256, n).astype(np.uint8) for n in (1, 7, 16, 50, 33)]


def sequences(train=PIECES, held_out=PIECES):
    pieces = {"train": train, "valid": held_out, "test": held_out}
    return Sequences("text", "made up", None, Bytes(), pieces.__getitem__)


def stream(piece):
    return [0, *(piece.astype(int) + 1).tolist()]


@pytest.mark.parametrize("length", [4, 16, 64])
def test_every_symbol_is_a_label_once_and_follows_its_input(length):
    windows = sequences().evaluation_windows("test", length)
    counted = [np.zeros(len(piece), dtype=int) for piece in PIECES]
    for inputs, labels, filled, piece, start in zip(
        windows.input_ids, windows.labels, windows.lengths, windows.piece, windows.start, strict=True
    ):
        tokens = stream(PIECES[piece])
        assert inputs[:filled].tolist() == tokens[start : start + filled]
        assert labels[:filled].tolist() == tokens[start + 1 : start + 1 + filled]
        assert (labels[filled:] == IGNORED).all()
        counted[piece][start : start + filled] += 1
    assert all((count == 1).all() for count in counted)


def test_training_windows_are_crops_that_the_seed_and_the_index_fix():
    windows, again, other = (sequences().training_windows(16, 400, seed) for seed in (0, 0, 1))
    starts = Counter()
    for index in range(len(windows)):
        example = windows[index]
        for name in ("input_ids", "labels"):
            np.testing.assert_array_equal(example[name], again[index][name])
        filled = int((example["labels"] != IGNORED).sum())
        crop = [*example["input_ids"][:1].tolist(), *example["labels"][:filled].tolist()]
        found = [
            (number, start)
            for number, piece in enumerate(PIECES)
            for start in range(len(piece) + 1)
            if stream(piece)[start : start + filled + 1] == crop
        ]
        assert found
        starts[found[0]] += 1
        assert example["input_ids"][1:filled].tolist() == crop[1:filled]
    assert (0, 0) in starts  # the piece of one symbol
    assert starts[3, 0] > 3  # beginnings
    assert starts[3, 50 - 16] > 3  # and ends
    assert len(starts) > 40
    assert any((windows[index]["labels"] != other[index]["labels"]).any() for index in range(10))
    with pytest.raises(IndexError):
        windows[400]


def plain_loss(train, weights, piece, place):
    """-ln p by the docstrings' formula: interpolated counts of the contexts of 0 to 5 symbols back."""
    probability = 1 / 256
    for order in range(6):
        context = tuple(stream(piece)[max(0, place + 1 - order) : place + 1])
        context = (0,) * (order - len(context)) + context
        nexts = Counter()
        for one in train:
            padded = [0] * 4 + stream(one)
            for end in range(5, len(padded)):
                if tuple(padded[end - order : end]) == context:
                    nexts[padded[end]] += 1
        total = sum(nexts.values())
        if total:
            weight = weights[order, total.bit_length()]
            probability = weight * nexts[stream(piece)[place + 1]] / total + (1 - weight) * probability
    return -math.log(probability)


def test_the_ngram_is_its_formula(monkeypatch):
    train = [np.frombuffer(text, np.uint8) for text in (b"abracadabra", b"barbara", b"cab")]
    asked = [np.frombuffer(b"abrab zab", np.uint8)]
    fitted = []
    import relattn_lab.sequences as module

    fit = module.Interpolation.fit
    monkeypatch.setattr(module.Interpolation, "fit", lambda *a: fitted.append(fit(*a)) or fitted[-1])
    ((losses,),) = sequences(train, asked).ngram_losses("test")
    expected = [plain_loss(train, fitted[0].weights, asked[0], place) for place in range(len(asked[0]))]
    np.testing.assert_allclose(losses, expected, rtol=1e-12)


def test_the_ngram_learns_from_a_single_piece():
    text = np.frombuffer(b"the cat sat on the mat. " * 50, np.uint8)
    ((losses,),) = sequences([text], [text[:240]]).ngram_losses("test")
    assert losses[6:].mean() < 0.1
    assert np.isfinite(losses).all()


# --- text ---


def test_a_text_is_split_in_contiguous_parts(tmp_path):
    path = tmp_path / "text.txt"
    content = bytes(range(128, 256)) * 8
    path.write_bytes(content)
    corpus = load_text(path)
    parts = [corpus.pieces(split)[0] for split in ("train", "valid", "test")]
    assert b"".join(part.tobytes() for part in parts) == content
    assert [len(part) for part in parts] == [819, 102, 103]
    assert corpus.name == "text.txt"


def test_bytes_are_tokens():
    vocabulary = Bytes()
    assert vocabulary.encode("aé").tolist() == [98, 0xC3 + 1, 0xA9 + 1]
    assert vocabulary.decode(np.array([0, 98, 0xC3 + 1, 256])) == b"a\xc3\xff"
    assert vocabulary.size == 257


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"", "a text of 0 bytes; expected at least 100 bytes, to train on and to hold out"),
        (b"short", "a text of 5 bytes; expected at least 100 bytes, to train on and to hold out"),
    ],
)
def test_a_text_too_short_is_refused(tmp_path, content, said):
    path = tmp_path / "text.txt"
    path.write_bytes(content)
    with pytest.raises(ValueError) as caught:
        load_corpus(str(path))
    assert str(caught.value) == f"data: got {path}, {said}"


def test_held_out_data_that_fill_no_window_are_refused(tmp_path):
    path = tmp_path / "text.txt"
    path.write_bytes(b"word " * 60)
    with pytest.raises(ValueError) as caught:
        Dataset.load(str(path), 64, Silent())
    assert str(caught.value) == (
        f"data: got {path}, of which 30 tokens are held out; expected at least 64, a window; give more data, or "
        "a smaller "
        "--length"
    )


# --- sources ---


def test_what_a_source_is(tmp_path):
    write_folder(tmp_path / "songs", 3)
    (tmp_path / "text").write_bytes(b"word " * 60)
    kinds = {
        name: load_corpus(str(tmp_path / name)).kind
        for name in (write_data(tmp_path / "chorales.json").name, "songs", "text")
    }
    assert kinds == {"chorales.json": "voices", "songs": "midi", "text": "text"}


def test_what_is_no_source_is_refused(tmp_path):
    with pytest.raises(FileNotFoundError) as caught:
        load_corpus("nowhere")
    assert str(caught.value) == (
        "data: got 'nowhere', which is not there; expected \"chorales\", a JSON file of chorales, a text file "
        "or a folder "
        "of MIDI files"
    )
    song = write_midi(tmp_path / "one.mid")
    with pytest.raises(ValueError) as caught:
        load_corpus(str(song))
    assert str(caught.value) == (
        f"data: got {song}, a single MIDI file; expected a folder with at least three; name their folder"
    )
