"""`relattn bench`: what it prints, and one sentence for whatever goes wrong."""

import os
import re
import signal
import sys

import pytest
from typer.testing import CliRunner

from relattn.cli.app import app
from relattn.cli.bench import options, run, timing
from relattn.cli.bench.relattn_candidates import CANDIDATES, FLOOR
from relattn.cli.bench.run import figures
from relattn.cli.bench.settings import Settings
from relattn.cli.bench.workload import ENCODINGS
from relattn.errors import UnsupportedError
from tests.cli.test_without_the_lab import without_the_lab

TINY = ["--lengths", "16,32", "--heads", "2", "--head-dims", "8", "--seconds", "0.001", "--device", "cpu"]


def call(*arguments):
    """Exit code, stdout and stderr of `relattn bench`, blanks made single."""
    ran = CliRunner().invoke(app, ["bench", *map(str, arguments)], env={"COLUMNS": "200"})
    if ran.exception is not None and not isinstance(ran.exception, SystemExit):
        raise ran.exception
    return ran.exit_code, " ".join(ran.stdout.split()), " ".join(ran.stderr.split())


@pytest.fixture(autouse=True)
def few(monkeypatch):
    monkeypatch.setattr(timing, "MOST_ROUNDS", 1)
    names = (FLOOR, "relattn sdpa", "relattn dense", "relattn native")
    monkeypatch.setattr(run, "CANDIDATES", {name: CANDIDATES[name] for name in names})


def test_every_backend_is_shown_beside_the_floor():
    code, printed, said = call("--encodings", "t5,layout", "--causal", "no", "--modes", "training", *TINY)
    assert code == 0
    assert said.startswith("benchmark: t5,layout at 16,32 tokens; loading PyTorch")
    for encoding, chosen, other in (("t5", "native", "dense"), ("layout", "dense", "native")):
        family = f"{encoding}, both directions, training step"
        rows = printed.partition(f"{family}, B=1, H=2, D=8, float32")[2].partition("float32")[0]
        for name in (FLOOR, f"relattn {chosen} (auto)", f"relattn {other}"):
            assert len(re.findall(rf"{re.escape(name)} [\d.]+ [\d.]+ [\d.]+-[\d.]+( !)? [\d.]+ 0\.\d+", rows)) == 2
    assert re.search(r"Not measured .* relattn sdpa it has no bias t5, B=1, H=2, D=8 layout, B=1", printed)


@pytest.mark.slow
def test_no_lab_is_needed():
    ran = without_the_lab("bench", "--encodings", "none", "--modes", "decoding", "--lengths", "8", *TINY[2:])
    assert (ran.returncode, "relattn blocks" in ran.stdout) == (0, True), ran.stderr


def test_what_is_measured_is_said_before_torch_is_loaded(monkeypatch):
    """In the first second."""
    monkeypatch.setitem(sys.modules, "relattn.cli.bench.command", None)  # the module that loads it cannot be imported
    ran = CliRunner().invoke(app, ["bench", "--lengths", "16,32"], env={"COLUMNS": "200"})
    assert isinstance(ran.exception, ImportError)
    encodings = ",".join(Settings().encodings)
    assert ran.stderr == f"benchmark: {encodings} at 16,32 tokens; loading PyTorch\n"
    assert ",".join(map(str, Settings().lengths)) == options.LENGTHS


@pytest.mark.parametrize(("signum", "exits"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_stop_shows_what_was_measured(signum, exits, monkeypatch):
    timed = run.timed

    def stopped(candidate, workload, seconds):
        if workload.length == 32:
            os.kill(os.getpid(), signum)
        return timed(candidate, workload, seconds)

    monkeypatch.setattr(run, "timed", stopped)
    code, printed, said = call("--encodings", "t5", "--causal", "no", "--modes", "forward", *TINY)
    assert code == exits
    assert said.endswith("stopped; the tables show what was measured until then")
    assert " 16 sdpa, no encoding " in printed
    assert " 32 " not in printed


def found(monkeypatch, timed, **given):
    """The reasons of every candidate at 32, 64 and 128."""
    monkeypatch.setattr(run, "timed", timed)
    settings = Settings(("none",), (32, 64, 128), ("no",), ("forward",), (8,), (2,), device="cpu", **given)
    measured = figures(settings, lambda done, note: None)
    return {(figure.candidate, figure.workload.length): figure.reason for figure in measured}


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (RuntimeError("can't allocate memory\nmore"), "can't allocate memory"),
        (UnsupportedError("no such shape"), "no such shape"),
    ],
)
def test_who_fails_is_given_up_at_longer_lengths(error, said, monkeypatch):
    def fails(candidate, workload, seconds):
        if candidate is CANDIDATES["relattn native"] and workload.length > 32:
            raise error

    reasons = found(monkeypatch, fails)
    assert [reasons["relattn native", length] for length in (32, 64, 128)] == [None, said, f"{said} at L=64"]
    assert reasons["relattn dense", 128] is None


def test_who_is_too_slow_is_given_up(monkeypatch):
    reasons = found(monkeypatch, lambda candidate, workload, seconds: None, patience=1e-9)
    assert reasons["relattn dense", 32] == "one step takes longer than 1e-09 s"
    assert reasons["relattn dense", 64] == "one step takes longer than 1e-09 s at L=32"


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--encodings", "tango"], "--encodings: got 'tango'; expected one of"),
        (["--lengths", "64,x"], "--lengths: got '64,x'; expected whole numbers separated by commas, such as 512,1024"),
        (["--head-dims", "0"], "--head-dims: got 0; expected an int of at least 1"),
        (["--patience", "-3"], "--patience: got -3.0; expected a finite number above 0"),
    ],
)
def test_bad_input_is_refused_in_one_sentence(arguments, said):
    code, printed, error = call(*arguments)
    assert (code, printed) == (2, "")
    assert re.match(rf"(benchmark: \S+ at \S+ tokens; loading PyTorch )?error: {re.escape(said)}", error)


def test_help_names_every_encoding_and_the_defaults_that_hold():
    code, printed, _ = call("--help")
    assert code == 0
    for name in ENCODINGS:
        assert name in printed
    defaults = Settings()
    for option in ("encodings", "lengths", "causal", "modes", "head_dims", "heads", "batches"):
        assert f"[default: ({','.join(map(str, getattr(defaults, option)))})]" in printed, option
    for shown in (defaults.dtype, f"{defaults.seconds:g}", f"{defaults.patience:g}"):
        assert f"[default: ({shown})]" in printed
