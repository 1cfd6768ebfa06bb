"""The command as a user runs it: real chorales, Ctrl-C, --resume, then a composition."""

import json
import os
import re
import signal
import subprocess
import sys
import time

import mido
import pytest

LAB = [sys.executable, "-m", "relattn_lab"]
SMALL = ["--encodings", "relative,sinusoid", "--steps", "60", "--width", "32", "--depth", "2", "--length", "64"]


def lab(*arguments):
    return subprocess.run([*LAB, *map(str, arguments)], capture_output=True, text=True, timeout=280)


def interrupt_at_a_checkpoint(out, name):
    """Start the comparison in `out` and press Ctrl-C once run `name` has written a checkpoint; the process's result."""
    process = subprocess.Popen(
        [*LAB, "compare", "--out", str(out), *SMALL], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    deadline = time.monotonic() + 200
    while not list((out / "runs" / name).glob("trainer/checkpoint-*/trainer_state.json")):
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < deadline
        time.sleep(0.02)
    process.send_signal(signal.SIGINT)
    stdout, stderr = process.communicate(timeout=100)
    return process.returncode, stdout, stderr


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_compare_interrupted_resumed_and_composed_with(tmp_path):
    out = tmp_path / "compare"
    code, stdout, stderr = interrupt_at_a_checkpoint(out, "sinusoid-seed0")
    assert (code, stdout) == (130, "")
    assert re.search(r"1 of 2 runs are done, and \d+ of the 60 steps of sinusoid, seed 0; this is kept", stderr)
    assert not (out / "results.json").exists()
    assert not (out / "report.html").exists()

    resumed = lab("compare", "--resume", "--out", out)
    assert resumed.returncode == 0, resumed.stderr
    whole = lab("compare", "--out", tmp_path / "whole", *SMALL)
    assert whole.returncode == 0, whole.stderr
    figures, expected = (
        json.loads((folder / "results.json").read_text())["summary"] for folder in (out, tmp_path / "whole")
    )
    assert figures == expected
    # 60 steps teach it the pitches at least: well below the uniform guess of ln(50)
    assert figures["relative"]["64"]["mean"] < 3.3
    assert "<svg" in (out / "report.html").read_text()

    checkpoint = out / "runs" / "relative-seed0" / "model"
    composed = lab("compose", "--checkpoint", checkpoint, "--out", tmp_path / "music", "--steps", 16)
    assert composed.returncode == 0, composed.stderr
    assert re.search(r"48 steps, 32 of them given", composed.stdout)
    (midi,) = (tmp_path / "music").glob("*.mid")
    sounding = [message for message in mido.MidiFile(midi) if message.type == "note_on" and message.velocity]
    # four voices, each with a note at least
    assert {message.channel for message in sounding} == {0, 1, 2, 3}
    assert next((tmp_path / "music").glob("*.png")).read_bytes().startswith(b"\x89PNG")


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_a_kill_without_warning_is_resumed_from_the_last_checkpoint(tmp_path):
    out = tmp_path / "compare"
    process = subprocess.Popen(
        [*LAB, "compare", "--out", str(out), *SMALL], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    deadline = time.monotonic() + 200
    while not list((out / "runs" / "sinusoid-seed0").glob("trainer/checkpoint-*/trainer_state.json")):
        assert process.poll() is None
        assert time.monotonic() < deadline
        time.sleep(0.02)
    os.kill(process.pid, signal.SIGKILL)
    process.wait()
    resumed = lab("compare", "--resume", "--out", out)
    assert resumed.returncode == 0, resumed.stderr
    assert len(json.loads((out / "results.json").read_text())["runs"]) == 2
