"""load_json: the format, and every way a file may be broken."""

import json
import os
from pathlib import Path

import numpy as np
import pytest

from relattn_lab.voices import NGram, Vocabulary, load_json, load_music

STEP = [72, 67, 64, 48]
GOOD = {"train": [[STEP, [-1, 67, 64, 0]], [STEP]], "valid": [[STEP]], "test": [[[127, 67, 64, 48]]]}


def written(folder: Path, content: object) -> Path:
    path = folder / "tiny.json"
    path.write_text(content if isinstance(content, str) else json.dumps(content))
    return path


def test_a_file_is_read_in_its_own_split(tmp_path):
    path = written(tmp_path, GOOD)
    for data in (load_json(path), load_music(str(path))):
        assert data.name == "tiny"
        assert {name: [piece.steps.tolist() for piece in data.split(name)] for name in GOOD} == GOOD
        assert [piece.name for piece in data.pieces] == ["tiny train 0", "tiny train 1", "tiny valid 0", "tiny test 0"]
        assert {(piece.upbeat, piece.bar_steps) for piece in data.pieces} == {(0, 16)}


def test_a_piece_may_have_a_name_and_a_metre(tmp_path):
    whole = {"name": "bwv 1", "upbeat": 4, "bar_steps": 12, "steps": [STEP, STEP]}
    data = load_json(written(tmp_path, {**GOOD, "test": [whole, {"steps": [STEP]}, [STEP]]}))
    assert [(piece.name, piece.upbeat, piece.bar_steps, len(piece.steps)) for piece in data.test] == [
        ("bwv 1", 4, 12, 2),
        ("tiny test 1", 0, 16, 1),
        ("tiny test 2", 0, 16, 1),
    ]


def with_step(step: object) -> dict:
    return {**GOOD, "valid": [[STEP], [STEP, STEP, step]]}


@pytest.mark.parametrize(
    ("content", "text"),
    [
        ("", "which is not JSON ("),
        (json.dumps(GOOD)[:-9], "which is not JSON ("),
        ("[" * 100_000, "which is not JSON ("),
        ("train: 1", "which is not JSON ("),
        ([], 'expected {"train": [...], "valid": [...], "test": [...]}, each a list of pieces'),
        ([], "which holds a list of 0; expected"),
        ("null", "which holds null"),
        ({"train": [], "valid": []}, "holds an object with the keys ['train', 'valid']"),
        ({**GOOD, "dev": []}, "holds an object with the keys ['dev', 'test', 'train', 'valid']"),
        ({**GOOD, "test": []}, "test: got a list of 0; expected a list with at least one piece"),
        ({**GOOD, "test": {}}, "test: got an object; expected a list with at least one piece"),
        ({**GOOD, "test": [[STEP], "x"]}, "test[1]: got a string; expected a list with at least one step"),
        ({**GOOD, "test": [[]]}, "test[0]: got a list of 0; expected a list with at least one step"),
        ({**GOOD, "test": [{"steps": [STEP], "key": "C"}]}, "test[0]: got the field 'key'; expected some of name, upb"),
        ({**GOOD, "test": [{"steps": [STEP], "upbeat": "4"}]}, "test[0]: got a string as upbeat; expected a number"),
        ({**GOOD, "test": [{"name": "bwv 1"}]}, "test[0]: got an object without steps; expected them"),
        ({**GOOD, "test": [{"steps": [STEP], "upbeat": 16}]}, "test[0]: piece 'tiny test 0': got upbeat=16; expected"),
        (with_step(60), "valid[1][2]: got a number; expected a step [soprano, alto, tenor, bass]"),
        (with_step([60, 60, 60]), "valid[1][2]: got a list of 3; expected a step [soprano, alto, tenor, bass]"),
        (with_step([60] * 5), "got a list of 5"),
        (
            with_step([60, 60.0, 60, 60]),
            "valid[1][2]: got 60.0 for the alto; expected an integer MIDI pitch 0..127, or -1",
        ),
        (with_step([60, 60, 60, 128]), "got 128 for the bass"),
        (with_step([-2, 60, 60, 60]), "got -2 for the soprano"),
        (with_step([60, 60, True, 60]), "got true for the tenor"),
        (with_step([60, 60, None, 60]), "got null for the tenor"),
        (with_step(["60", 60, 60, 60]), 'got "60" for the soprano'),
        (with_step([float("nan"), 60, 60, 60]), "got NaN for the soprano"),
    ],
)
def test_a_broken_file(tmp_path, content, text):
    path = written(tmp_path, content)
    with pytest.raises(ValueError) as caught:
        load_json(path)
    assert str(caught.value).startswith((f"data: {path}: ", f"data: got {path}, "))
    assert text in str(caught.value)


def test_no_text_at_all(tmp_path):
    path = tmp_path / "tiny.json"
    path.write_bytes(b"\xff\xfe\x00\x81")
    with pytest.raises(ValueError, match=r"which is not JSON \("):
        load_json(path)


def test_no_file(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"data: got .*, which is not there; expected a JSON file of chorales"):
        load_json(tmp_path / "absent.json")
    with pytest.raises(FileNotFoundError, match=r"data: got .*, which is not there; expected a JSON file of chorales"):
        load_json(tmp_path)


JSB = Path(os.environ.get("RELATTN_JSB_JSON", Path(__file__).parents[4] / "shared/data/Jsb16thSeparated.json"))


@pytest.mark.skipif(
    not JSB.is_file(), reason="the JSB Chorales data set is not here; RELATTN_JSB_JSON may name the file"
)
def test_the_jsb_chorales():
    data = load_json(JSB)
    sizes = {name: (len(data.split(name)), sum(p.steps.size for p in data.split(name))) for name in GOOD}
    assert sizes == {"train": (229, 220_912), "valid": (76, 73_632), "test": (77, 75_600)}
    assert len(np.unique(np.concatenate([piece.steps for piece in data.pieces]))) == 47
    model = NGram.fit(data.train, Vocabulary.covering(data.pieces))
    # an independent n-gram over voice, place in the beat and a few past tokens gave 0.614 and 0.642
    assert 0.4 < model.evaluate(data.valid) < 0.614
    assert 0.4 < model.evaluate(data.test) < 0.642
