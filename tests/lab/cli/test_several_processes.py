"""The command in several processes, as torchrun and accelerate start them: the figures of one process."""

import json
import os
import re
import signal
import subprocess
import sys
import time

import psutil
import pytest

from relattn_lab.compare import start
from relattn_lab.encodings import ENCODINGS
from tests.lab.small import Recorder, settings, write_data

FEW = ("relative", "sinusoid")
SIZES = {"length": 100, "steps": 6}
"""A window that neither 2 nor 4 processes halve twice without filling it up, and longer than most pieces."""
EXACT = 1e-5
"""Of nats in float32 by the weights that all begin with: some hundred roundings of numbers of about 4."""
BEGIN_WITH = 2
"""Steps that see them: the rate of the first update is 0."""
AFTER_UPDATES = 2e-3
"""Of nats after updates by Muon, which takes its direction in bfloat16.

Where gradients differ by a rounding of float32, any number of that direction may differ by a unit of bfloat16, 2^-8 of
its size. The 3,072 numbers move by 0.2 of the rate 0.01 each, in the root mean square, so an update by at most
2^-8 * 0.002 * sqrt(3072) = 4.3e-4; five of them, along a gradient whose norm is about 1, change the loss by 2e-3.
"""

HANGING = 540
"""Seconds after which processes that work for half a minute are taken to hang; within the least limit of a test."""


def launched(processes, *arguments):
    """The command line of `relattn-lab` in so many processes."""
    run = ["-m", "torch.distributed.run", "--nproc-per-node", str(processes), "-m", "relattn_lab"]
    return [sys.executable, *run, *map(str, arguments)]


def compare(data, out, encodings, *more):
    sizes = [word for name, size in SIZES.items() for word in (f"--{name}", size)]
    asked = ["compare", "--data", data, "--out", out, "--encodings", ",".join(encodings), *sizes, *more]
    return [*asked, "--width", 16, "--depth", 1, "--heads", 2]


def ran(command):
    """Carried out; processes that do not end say where they stand."""
    process = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        env={**os.environ, "OMP_NUM_THREADS": "1", "PYTHONFAULTHANDLER": "1"},
    )  # fmt: skip
    try:
        stdout, stderr = process.communicate(timeout=HANGING)
    except subprocess.TimeoutExpired:
        for one in [*psutil.Process(process.pid).children(recursive=True), process]:
            one.send_signal(signal.SIGABRT)  # its faulthandler prints the stacks of its threads
        pytest.fail(f"no end after {HANGING} s\n{process.communicate()[1]}")
    return subprocess.CompletedProcess(command, process.returncode, stdout, stderr)


def results(out):
    return json.loads((out / "results.json").read_text())


def whole(folder, encodings):
    """What one process comes to: the folder of the data, and its results."""
    chosen = settings(write_data(folder / "small.json"), encodings=encodings, **SIZES)
    return folder / "small.json", start(chosen, folder / "whole", Recorder()).run()


@pytest.fixture(scope="module")
def alone(tmp_path_factory):
    return whole(tmp_path_factory.mktemp("several"), FEW)


def check_equal(found, expected):
    assert [run["encoding"] for run in found["runs"]] == [run["encoding"] for run in expected["runs"]]
    for run, other in zip(found["runs"], expected["runs"], strict=True):
        for curve in ("training", "validation"):
            assert [step for step, _ in run[curve]] == [step for step, _ in other[curve]]
            for (step, nats), (_, wanted) in zip(run[curve], other[curve], strict=True):
                exact = curve == "training" and step <= BEGIN_WITH
                assert nats == pytest.approx(wanted, abs=EXACT if exact else AFTER_UPDATES)
        for length, losses in run["evaluation"].items():
            assert losses["count"] == other["evaluation"][length]["count"]
            assert losses["nats"] == pytest.approx(other["evaluation"][length]["nats"], abs=AFTER_UPDATES)


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    ("more", "told"),
    [
        ([], "2 processes, each with 2 windows of a step&#x27;s 4, 1 thread each"),
        pytest.param(
            ["--context-parallel", 2],
            "2 processes, each with one of 2 parts of 4 windows of a step&#x27;s 4, 1 thread each",
            marks=pytest.mark.slow,
        ),
    ],
)
def test_two_processes_come_to_the_figures_of_one(alone, tmp_path, more, told):
    data, expected = alone
    out = tmp_path / "out"
    done = ran(launched(2, *compare(data, out, FEW, *more)))
    assert done.returncode == 0, done.stderr
    found = results(out)
    check_equal(found, expected)
    assert [run["processes"] for run in found["runs"]] == [2, 2]
    said = done.stderr.splitlines()
    for label in ("relative, seed 0: ", "n-gram: "):
        assert len([line for line in said if line.startswith(label) and line.endswith("nats per token")]) == 1
        assert len([line for line in said if line.startswith(label) and line.endswith("to go")]) >= 1
    assert done.stdout.count("Negative log-likelihood") == done.stdout.count("report  ") == 1
    assert {path.name for path in out.iterdir()} == {
        "config.toml", "report.html", "results.json", "runs", "settings.json",
    }  # fmt: skip
    kept = {path.name for path in (out / "runs" / "relative-seed0").iterdir()}
    assert kept == {"model", "result.json", "continuation.json"}
    report = (out / "report.html").read_text()
    assert told in report
    assert "torchrun --nproc-per-node 2 -m relattn_lab compare" in report
    assert ("--context-parallel 2" in report) == bool(more)


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_every_encoding_of_the_lab_in_four_processes(tmp_path):
    """Windows and their parts both shared out; the test of two processes has either alone, for two encodings."""
    data, expected = whole(tmp_path, ENCODINGS)
    done = ran(launched(4, *compare(data, tmp_path / "out", ENCODINGS, "--context-parallel", 2)))
    assert done.returncode == 0, done.stderr
    check_equal(results(tmp_path / "out"), expected)


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_minutes_become_steps_in_all_processes(alone, tmp_path):
    data, _ = alone
    asked = [str(word) for word in compare(data, tmp_path / "out", ("relative",), "--context-parallel", 2)]
    place = asked.index("--steps")
    asked[place : place + 2] = ["--minutes", "0.1"]
    done = ran(launched(2, *asked))
    assert done.returncode == 0, done.stderr
    assert results(tmp_path / "out")["settings"]["steps_taken"] >= 20


HELD = """
class Held:
    def __del__(self):
        print("Python's exit")
held = Held()
"""
LATE = """
import os, time
from relattn.cli import console
if os.environ["RANK"] == "0":
    written = console.err.print
    def late(*given, **more):
        time.sleep(3)
        written(*given, **more)
    console.err.print = late
"""
COMMAND = """
from relattn_lab.cli.app import app
app()
"""


def by_script(folder, text, asked):
    """The command of two processes, run by a script of the tests."""
    script = folder / "watched.py"
    script.write_text(text)
    start = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2", str(script)]
    return ran([*start, *map(str, asked)])


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_processes_leave_before_python_exits(alone, tmp_path):
    """Python's exit beside threads of gloo aborts the process, now and then."""
    data, _ = alone
    done = by_script(tmp_path, HELD + COMMAND, compare(data, tmp_path / "out", ("relative",), "--context-parallel", 2))
    assert done.returncode == 0, done.stderr
    assert "compose  relattn-lab compose" in done.stdout
    assert "Python's exit" not in done.stdout


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_processes_refused_leave_at_once_after_the_main_one(alone, tmp_path):
    """As above; torchrun kills all when one has ended."""
    data, _ = alone
    done = by_script(tmp_path, HELD + LATE + COMMAND, compare(data, tmp_path / "out", ("nope",)))
    assert done.returncode != 0
    assert done.stderr.count("error: ") == 1, done.stderr
    assert "error: --encodings: got 'nope'; expected one of" in done.stderr
    assert "Python's exit" not in done.stdout


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_accelerate_starts_several_processes_or_is_refused(alone, tmp_path):
    data, expected = alone
    launch = [sys.executable, "-m", "accelerate.commands.launch", "--num_processes", "2", "--main_process_port", "0"]
    asked = ["-m", "relattn_lab", *map(str, compare(data, tmp_path / "out", FEW))]
    refused = ran([*launch, "--cpu", *asked])
    assert refused.returncode != 0
    assert "error: processes: got one process of the several that `accelerate launch --cpu` was" in refused.stderr
    done = ran([*launch, "--multi_gpu", *asked])
    assert done.returncode == 0, done.stderr
    check_equal(results(tmp_path / "out"), expected)


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_one_sentence_for_all_processes(alone, tmp_path):
    """For an unknown encoding, see the test of processes refused."""
    data, _ = alone
    for asked, said in (
        (compare(data, data, FEW), f"error: --out: got {data}, which is a file; expected a folder"),
        (compare(tmp_path / "no.json", tmp_path / "out", FEW), "error: --data: got"),
        (
            compare(data, tmp_path / "out", FEW, "--context-parallel", 3),
            "error: --context-parallel: got 3 for 2 processes",
        ),
    ):
        done = ran(launched(2, *asked))
        assert done.returncode != 0
        assert done.stderr.count("error: ") == 1, done.stderr
        assert said in done.stderr


@pytest.fixture(scope="module")
def uninterrupted(tmp_path_factory):
    """What is asked, up to the folder that it writes to, and its results in two processes that nobody stops."""
    folder = tmp_path_factory.mktemp("uninterrupted")
    data = write_data(folder / "small.json")
    asked = ["--encodings", "none,relative", "--steps", 400, "--length", 16, "--width", 16, "--depth", 1, "--heads", 2]
    asked = ["compare", "--data", data, *asked, "--out"]
    assert ran(launched(2, *asked, folder / "whole")).returncode == 0
    return asked, results(folder / "whole")


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("stop", [signal.SIGKILL, signal.SIGTERM])
def test_a_kill_is_resumed_from_the_last_checkpoint(uninterrupted, tmp_path, stop):
    asked, expected = uninterrupted
    out = tmp_path / "out"
    process = subprocess.Popen(
        launched(2, *asked, out), stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )  # fmt: skip
    deadline = time.monotonic() + 200
    while not list((out / "runs" / "relative-seed0").glob("trainer/checkpoint-*/trainer_state.json")):
        assert process.poll() is None
        assert time.monotonic() < deadline
        time.sleep(0.02)
    if stop == signal.SIGKILL:  # one process; torchrun ends the other
        psutil.Process(process.pid).children()[0].kill()
    else:
        process.send_signal(stop)
    told = process.communicate(timeout=100)[1]
    if stop == signal.SIGTERM:
        kept = re.findall(r"stopped; 1 of 2 runs are done, and \d+ of the 400 steps of relative, seed 0;", told)
        assert len(kept) == 1, told
        assert f"torchrun --nproc-per-node 2 -m relattn_lab compare --resume --out {out}" in told
    assert not (out / "results.json").exists()
    done = ran(launched(2, "compare", "--resume", "--out", out))
    assert done.returncode == 0, done.stderr
    assert results(out)["summary"] == expected["summary"]
