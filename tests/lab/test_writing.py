"""A disk that is full: one sentence, what was done stays, and --resume goes on.

A name in the place of a file leads to /dev/full, where every write fails as on a full disk.
"""

import os
import shutil
from pathlib import Path

import pytest

from relattn_lab import compare as lab_compare
from relattn_lab import experiment as lab_experiment
from relattn_lab.compare import resume, start
from tests.lab.small import Recorder, settings, write_data

FULL = Path("/dev/full")
needs_full = pytest.mark.skipif(not FULL.exists(), reason="the system has no /dev/full")

WAY_OUT = (
    "expected free space and write permission; what was done before is kept: free some space, then go on with --resume"
)


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    folder = tmp_path_factory.mktemp("whole")
    data = write_data(folder / "small.json")
    return data, start(settings(data), folder / "out", Recorder()).run()


@pytest.mark.slow
@needs_full
@pytest.mark.parametrize("name", ["model.safetensors", "optimizer.pt", "trainer_state.json", "rng_state.pth"])
def test_a_checkpoint_on_a_full_disk(whole, tmp_path, name):
    data, expected = whole
    out = tmp_path / "out"
    trainer = out / "runs" / "none-seed0" / "trainer"

    def fill(label: str, done: int) -> None:
        if (label, done) == ("none, seed 0", 3):
            (trainer / "checkpoint-3").mkdir()
            if name == "model.safetensors":  # written beside its place first, and then moved there
                (trainer / "checkpoint-3" / name / "within").mkdir(parents=True)
            else:
                (trainer / "checkpoint-3" / name).symlink_to(FULL)

    begun = start(settings(data), out, Recorder(fill))
    with pytest.raises(OSError) as caught:
        begun.run()
    said = f"out: the checkpoint of none, seed 0, at step 3 cannot be written to {trainer}: got "
    assert str(caught.value).startswith(said)
    assert str(caught.value).endswith(WAY_OUT)
    assert "\n" not in str(caught.value)
    assert begun.finished() == 1
    shutil.rmtree(trainer / "checkpoint-3")
    assert resume(out, {}, Recorder()).run()["summary"] == expected["summary"]


@pytest.mark.one_in(3)
@pytest.mark.parametrize(
    ("what", "writer", "place"),
    [
        ("the trained model", (lab_experiment, "save_checkpoint"), "runs/relative-seed0"),
        ("the run's figures", (lab_experiment, "write_json"), "runs/relative-seed0"),
        ("the report", (lab_compare, "write_text"), "."),
    ],
)
def test_all_else_on_a_full_disk(whole, tmp_path, monkeypatch, what, writer, place):
    data, expected = whole
    out = tmp_path / "out"
    begun = start(settings(data), out, Recorder())

    def full(*arguments):
        raise OSError(28, os.strerror(28))

    monkeypatch.setattr(*writer, full)
    with pytest.raises(OSError) as caught:
        begun.run()
    assert (
        str(caught.value) == f"out: {what} cannot be written to {out / place}: got 'No space left on device'; {WAY_OUT}"
    )
    monkeypatch.undo()
    assert resume(out, {}, Recorder()).run()["summary"] == expected["summary"]
