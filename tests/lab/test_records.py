"""Files of a comparison that are damaged: one sentence, before anything is trained."""

import json
import random
import re

import pytest

from relattn_lab.compare import resume, start
from relattn_lab.records import read_record
from relattn_lab.settings import FILE as SETTINGS
from relattn_lab.settings import Plan
from tests import seeds
from tests.lab.small import Recorder, settings, write_data


@pytest.fixture(scope="module")
def done(tmp_path_factory):
    folder = tmp_path_factory.mktemp("done")
    comparison = start(settings(write_data(folder / "small.json")), folder / "out", Recorder())
    comparison.run()
    return comparison.out


@pytest.fixture
def record(done, tmp_path):
    path = tmp_path / "result.json"
    path.write_bytes((done / "runs" / "relative-seed0" / "result.json").read_bytes())
    return path


def read(path):
    return read_record(path, "relative", 0, 6, {str(length): length for length in (16, 32, 64)})


def test_a_whole_record_is_what_was_written(record):
    assert read(record) == json.loads(record.read_text())


def places(value, path=()):
    """The path to every value of a JSON document but the empty one."""
    found = [path] if path else []
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    return found + [place for key, inner in items for place in places(inner, (*path, key))]


@pytest.mark.slow
def test_every_value_of_a_record_matters(record):
    """Taken away, or of another type: refused, wherever it is; but where None or an empty list is a value, too."""
    whole = json.loads(record.read_text())
    for place in places(whole):
        for wrong in ("x", {}, [], True, float("nan"), None):
            document = json.loads(json.dumps(whole))
            inner = document
            for key in place[:-1]:
                inner = inner[key]
            inner[place[-1]] = wrong
            if wrong is None and place == ("seconds_per_step",):
                continue
            record.write_text(json.dumps(document))
            with pytest.raises(ValueError) as caught:
                read(record)
            assert str(caught.value).startswith(f"resume: got {record}, which is damaged ("), (place, wrong)
    for key in whole:
        record.write_text(json.dumps({name: value for name, value in whole.items() if name != key}))
        with pytest.raises(ValueError, match=r"which is damaged \(KeyError: '"):
            read(record)


def damaged(content: bytes) -> list[bytes]:
    """Cut off, and overwritten in places."""
    drawn = random.Random(seeds.seed("damage"))
    found = [content[: drawn.randrange(len(content) - 2)] for _ in range(20)]
    for _ in range(20):
        at = drawn.randrange(len(content) - 9)
        found.append(content[:at] + drawn.randbytes(8) + content[at + 8 :])
    return [*found, b"", b"\xff\xfe", b"[" * 100_000, b"null", b"3", b'"x"', b"[]", b"{}", bytes(50)]


@pytest.mark.slow
def test_a_damaged_record_is_told_before_anything_is_trained(done, record):
    path = done / "runs" / "none-seed0" / "result.json"
    whole = path.read_bytes()
    try:
        path.write_bytes(whole[: len(whole) // 2])
        (done / "runs" / "relative-seed0" / "result.json").unlink()
        recorder = Recorder()
        with pytest.raises(ValueError) as caught:
            resume(done, {}, recorder)
        assert re.fullmatch(
            rf"resume: got {re.escape(str(path))}, which is damaged \(JSONDecodeError: .*\); expected what this "
            "comparison wrote; remove it, and --resume trains that run again",
            str(caught.value),
        )
        assert [label for label, _ in recorder.begun if "seed" in label] == []
        path.unlink()
        assert len(resume(done, {}, Recorder()).run()["runs"]) == 2
    finally:
        path.write_bytes(whole)
        (done / "runs" / "relative-seed0" / "result.json").write_bytes(record.read_bytes())


def test_any_damage_to_a_record_is_a_sentence_or_harmless(record):
    """What still is a whole record with other figures cannot be told; everything else is."""
    for content in damaged(record.read_bytes()):
        record.write_bytes(content)
        try:
            read(record)
        except ValueError as error:
            assert str(error).startswith(f"resume: got {record}, which is damaged (")


def test_any_damage_to_the_settings_is_a_sentence_or_harmless(done, tmp_path):
    whole = (done / SETTINGS).read_bytes()
    for content in damaged(whole):
        (tmp_path / SETTINGS).write_bytes(content)
        try:
            Plan.load(tmp_path, {})
        except ValueError as error:
            assert str(error).startswith(f"resume: got {tmp_path / SETTINGS}, which is damaged (")


def test_every_value_of_the_settings_matters(done, tmp_path):
    whole = json.loads((done / SETTINGS).read_text())
    for place in places(whole):
        for wrong in ({}, [], True, float("nan"), -1, 10**400):
            document = json.loads(json.dumps(whole))
            inner = document
            for key in place[:-1]:
                inner = inner[key]
            inner[place[-1]] = wrong
            (tmp_path / SETTINGS).write_text(json.dumps(document))
            with pytest.raises(ValueError) as caught:
                Plan.load(tmp_path, {})
            assert str(caught.value).startswith(f"resume: got {tmp_path / SETTINGS}, which is damaged ("), (
                place,
                wrong,
            )
