"""load_chorales: what is kept, the cache and its accidents; the whole corpus in the slow test."""

import os
from pathlib import Path

import numpy as np
import pytest

from relattn_lab.voices import NGram, Vocabulary, chorale_parser, chorales, load_chorales, load_music
from relattn_lab.voices.chorales import distinct
from relattn_lab.voices.pieces import SPLITS, Piece
from relattn_lab.voices.split import melody_groups
from tests.lab.voices.synthetic import random_pieces
from tests.lab.voices.test_split import assert_no_tune_on_two_sides

# Four melodies; 62.6 and 274 are one piece under two numbers, 8.6 has five parts
SOME = ("bwv8.6", "bwv10.7", "bwv62.6", "bwv253", "bwv269", "bwv274")


def contents(pieces: tuple[Piece, ...]) -> list[tuple]:
    return [(piece.name, piece.steps.tolist(), piece.upbeat, piece.bar_steps) for piece in pieces]


@pytest.fixture
def some_files(monkeypatch):
    """music21's corpus cut down to SOME, out of order."""
    paths = {path.stem: path for path in chorale_parser.chorale_paths()}
    monkeypatch.setattr(chorale_parser, "chorale_paths", lambda: [paths[name] for name in reversed(SOME)])


@pytest.fixture
def made_up(monkeypatch):
    """Made-up pieces in place of parsed ones; the list grows by one entry each time they are asked for."""
    pieces, parsed = random_pieces(0, [70] * 12), []

    def parse_all(progress):
        parsed.append(progress)
        return pieces

    monkeypatch.setattr(chorales, "_parse_all", parse_all)
    return parsed


def test_real_files_are_parsed_once(tmp_path, some_files, monkeypatch):
    calls = []
    data = load_chorales(cache_dir=tmp_path, progress=lambda done, total: calls.append((done, total)))
    assert calls == [(n, 6) for n in range(1, 7)]
    assert sorted(piece.name for piece in data.pieces) == ["bwv10.7", "bwv253", "bwv269", "bwv62.6"]
    assert data.name == "chorales"
    assert len(os.listdir(tmp_path)) == 1
    monkeypatch.setattr(chorale_parser, "parse_chorale", lambda path: pytest.fail("parsed again"))
    again = load_music("chorales", cache_dir=tmp_path, progress=lambda done, total: calls.append((done, total)))
    assert len(calls) == 6
    assert all(contents(again.split(name)) == contents(data.split(name)) for name in SPLITS)


def test_the_catalogue_is_in_order(some_files):
    assert [piece.name for piece in chorales._parse_all(None)] == ["bwv10.7", "bwv62.6", "bwv253", "bwv269", "bwv274"]


def test_distinct_keeps_the_first_of_a_melody():
    (piece, other) = random_pieces(1, [40, 40])
    moved = np.where(piece.steps < 0, -1, piece.steps + 2)
    moved[:, 3] = -1
    longer = Piece("longer", np.concatenate([piece.steps, piece.steps[:4]]))
    changed = piece.steps.copy()
    changed[-1, 0] = 75
    kept = distinct([piece, other, Piece("moved", moved), longer, Piece("changed", changed)])
    assert [one.name for one in kept] == ["piece 0", "piece 1", "longer", "changed"]


def truncated(whole: bytes) -> bytes:
    return whole[: len(whole) // 2]


def flipped(whole: bytes) -> bytes:
    """A bit of the compressed pitches changed."""
    place = whole.index(b"steps.npy") + 200
    return whole[:place] + bytes([whole[place] ^ 1]) + whole[place + 1 :]


@pytest.mark.parametrize("damage", [truncated, flipped, lambda whole: b"", lambda whole: b"not an archive"])
def test_a_broken_cache_is_parsed_anew(tmp_path, made_up, damage):
    data = load_chorales(cache_dir=tmp_path)
    (name,) = os.listdir(tmp_path)
    whole = (tmp_path / name).read_bytes()
    (tmp_path / name).write_bytes(damage(whole))
    again = load_chorales(cache_dir=tmp_path)
    assert len(made_up) == 2
    assert contents(again.pieces) == contents(data.pieces)
    load_chorales(cache_dir=tmp_path)
    assert len(made_up) == 2
    assert os.listdir(tmp_path) == [name]


@pytest.mark.parametrize(
    "change",
    [
        {"steps": None},
        {"lengths": np.array([70] * 11)},
        {"lengths": np.array([70] * 10 + [69, 72])},
        {"metres": np.array([[4, 16]] * 11)},
        {"metres": np.array([[16, 16]] * 12)},
        {"steps": np.full((840, 4), 200, dtype=np.int16)},
        {"steps": np.full((840, 4), 60.0)},
        {"names": np.array([{}] * 12, dtype=object)},
    ],
)
def test_a_cache_with_other_contents_is_parsed_anew(tmp_path, made_up, change):
    load_chorales(cache_dir=tmp_path)
    (path,) = Path(tmp_path).iterdir()
    with np.load(path) as archive:
        arrays = {key: value for key, value in {**archive, **change}.items() if value is not None}
    np.savez(path, **arrays)
    load_chorales(cache_dir=tmp_path)
    assert len(made_up) == 2


def test_the_cache_is_named_by_version(tmp_path, made_up, monkeypatch):
    load_chorales(cache_dir=tmp_path)
    monkeypatch.setattr(chorales.metadata, "version", lambda package: f"{package}-99")
    load_chorales(cache_dir=tmp_path)
    monkeypatch.setattr(chorales, "CACHE_FORMAT", 99)
    load_chorales(cache_dir=tmp_path)
    assert len(made_up) == 3
    assert len(os.listdir(tmp_path)) == 3


def test_the_default_folder(tmp_path, made_up, monkeypatch):
    monkeypatch.setattr(Path, "home", lambda: tmp_path)
    load_chorales()
    assert len(os.listdir(tmp_path / ".cache" / "relattn")) == 1


def test_a_folder_that_cannot_be_written(tmp_path, made_up):
    (tmp_path / "file").touch()
    with pytest.warns(UserWarning, match="the chorales could not be cached, and will be parsed again next time"):
        data = load_chorales(cache_dir=tmp_path / "file")
    assert len(data.pieces) == 12


def test_a_stopped_run_leaves_no_cache(tmp_path, some_files):
    def stop(done, total):
        if done == 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        load_chorales(cache_dir=tmp_path, progress=stop)
    assert os.listdir(tmp_path) == []


@pytest.mark.slow
def test_the_whole_corpus(tmp_path):
    four_part = chorales._parse_all(None)
    assert len(four_part) == 364
    pieces = distinct(four_part)
    assert len(pieces) == 352
    assert len(melody_groups(pieces)) == 225
    chorales._write_cache(chorales._cache_path(tmp_path), four_part)
    data = load_chorales(cache_dir=tmp_path, progress=lambda done, total: pytest.fail("parsed again"))
    sizes = {name: (len(data.split(name)), sum(piece.steps.size for piece in data.split(name))) for name in SPLITS}
    assert sizes == {"train": (280, 247_040), "valid": (36, 31_120), "test": (36, 29_824)}
    assert_no_tune_on_two_sides(data)
    vocabulary = Vocabulary.covering(data.pieces)
    assert (vocabulary.low, vocabulary.high) == (36, 81)
    model = NGram.fit(data.train, vocabulary)
    assert model.evaluate(data.valid) == pytest.approx(0.5410, abs=5e-4)
    assert model.evaluate(data.test) == pytest.approx(0.5026, abs=5e-4)
