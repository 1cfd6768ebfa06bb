"""`python -m measure`: what it prints and writes, and one sentence for whatever goes wrong."""

import json
import os
import re
import signal
import sys
from importlib.util import find_spec

import pytest
from typer.testing import CliRunner

from measure import run
from measure.__main__ import SCRIPTS, app
from measure.candidates import CANDIDATES
from measure.memory import Memory
from measure.settings import Settings
from relattn.cli.bench import options, timing
from relattn.cli.bench.relattn_candidates import FLOOR
from relattn_lab.lock import exclusive_folder

TINY = ["--lengths", "16,32", "--heads", "2", "--head-dims", "8", "--seconds", "0.001", "--device", "cpu"]


def call(*arguments):
    """Exit code, stdout and stderr of `python -m measure`, blanks made single."""
    ran = CliRunner().invoke(app, list(map(str, arguments)), env={"COLUMNS": "200"})
    if ran.exception is not None and not isinstance(ran.exception, SystemExit):
        raise ran.exception
    return ran.exit_code, " ".join(ran.stdout.split()), " ".join(ran.stderr.split())


@pytest.fixture
def few(monkeypatch):
    monkeypatch.setattr(run, "CANDIDATES", {name: CANDIDATES[name] for name in (FLOOR, "relattn dense", "plain")})


@pytest.mark.slow
def test_a_benchmark_prints_and_writes(few, tmp_path):
    code, printed, _ = call("--out", tmp_path, "--encodings", "t5", "--causal", "yes", "--modes", "training", *TINY)
    assert code == 0
    for name in ("results.json", "table.md", "t5-causal.png"):
        assert (tmp_path / name).exists()
        assert str(tmp_path / name) in printed
    assert "t5, causal, training step, B=1, H=2, D=8, float32" in printed
    kept = json.loads((tmp_path / "results.json").read_text())
    assert [m["workload"]["length"] for m in kept["measurements"]] == [16] * 3 + [32] * 3


def test_what_is_measured_is_said_before_torch_is_loaded(monkeypatch):
    """In the first second."""
    monkeypatch.setitem(sys.modules, "measure.command", None)  # the module that loads it cannot be imported
    ran = CliRunner().invoke(app, ["--lengths", "16,32"], env={"COLUMNS": "200"})
    assert isinstance(ran.exception, ImportError)
    encodings = ",".join(Settings().encodings)
    assert ran.stderr == f"benchmark: {encodings} at 16,32 tokens; loading PyTorch\n"
    assert ",".join(map(str, Settings().lengths)) == options.LENGTHS


@pytest.mark.slow
def test_images_and_documents_are_measured(tmp_path, monkeypatch):
    names = (FLOOR, "relattn native", "sdpa, S as mask", "transformers", "timm")
    monkeypatch.setattr(run, "CANDIDATES", {name: CANDIDATES[name] for name in names})
    monkeypatch.setattr(timing, "MOST_ROUNDS", 1)
    monkeypatch.setattr(run, "measure", lambda name, workload, limit, patience: Memory(1000, 1000, 500, 1e-3))
    encodings = ["--encodings", "grid-bias,decomposed,layout", "--modes", "forward", *TINY[2:], "--lengths", "16"]
    code, printed, _ = call("--out", tmp_path, *encodings)
    assert code == 0
    assert "layout, both directions, forward, B=1, H=2, D=8, float32" in printed
    found = json.loads((tmp_path / "results.json").read_text())["measurements"]
    assert len(found) == 3 * len(names)
    assert {m["reason"] for m in found if m["candidate"] != "timm"} == {None}
    for name in ("grid-bias", "decomposed", "layout"):
        assert (tmp_path / f"{name}.png").exists()


def test_an_interrupt_keeps_what_was_measured(few, tmp_path, monkeypatch):
    measure, taken = run.measure, []

    def interrupted(*arguments):
        if len(taken) == 2:
            raise KeyboardInterrupt
        taken.append(arguments)
        return measure(*arguments)

    monkeypatch.setattr(run, "measure", interrupted)
    code, printed, said = call("--out", tmp_path, "--encodings", "t5", *TINY)
    assert (code, printed) == (130, "")
    assert said.endswith(f"stopped; what was measured is kept in {tmp_path / 'results.json'}; the same command goes on")
    assert len(json.loads((tmp_path / "results.json").read_text())["measurements"]) == 2


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--encodings", "tango"], "--encodings: got 'tango'; expected one of"),
        (["--encodings", ""], "--encodings: got ''; expected one of"),
        (["--lengths", "64,x"], "--lengths: got '64,x'; expected whole numbers separated by commas"),
        (["--lengths", "64,64"], "--lengths: got (64, 64); expected at least one, each once"),
        (["--causal", "perhaps"], "--causal: got 'perhaps'; expected one of 'no', 'yes'"),
        (["--modes", "inference"], "--modes: got 'inference'; expected one of 'forward', 'training', 'decoding'"),
        (["--batches", "0"], "--batches: got 0; expected an int of at least 1"),
        (["--heads", "0"], "--heads: got 0; expected an int of at least 1"),
        (["--dtype", "float8"], "--dtype: got 'float8'; expected one of"),
        (["--device", "abacus"], "--device: got 'abacus'; expected one of 'cpu', 'cuda'"),
        (["--seconds", "0"], "--seconds: got 0.0; expected a finite number above 0"),
        (["--patience", "-3"], "--patience: got -3.0; expected a finite number above 0"),
        (["--max-length", "0"], "--max-length: got 0.0; expected a finite number above 0"),
    ],
)
def test_bad_input_is_refused_in_one_sentence(tmp_path, arguments, said):
    out = tmp_path / "out"
    code, printed, error = call("--out", out, *arguments)
    assert (code, printed) == (2, "")
    assert re.match(rf"(benchmark: \S+ at \S+ tokens; loading PyTorch )?error: {re.escape(said)}", error)
    assert not out.exists()


@pytest.mark.parametrize("asked", [["small"], ["relative"], []], ids=["a study", "a grid", "a benchmark"])
def test_a_folder_is_refused_that_is_another_s_or_has_no_name(asked, tmp_path):
    """Both would measure at once, and the same benchmark would overwrite the file of the other."""
    busy = tmp_path / "busy" / ("relative" if asked == ["relative"] else "")
    with exclusive_folder(busy):
        assert call(*asked, "--out", tmp_path / "busy")[2].endswith(
            f"error: --out: got {busy}, where another process is at work; expected a folder for this one alone; wait "
            "for the other to end, or choose another --out"
        )
    nameless = tmp_path / os.fsdecode(b"b\xff")
    said = call(*asked, "--out", nameless)[2]
    assert said.endswith("which is not UTF-8; expected a name in UTF-8; rename it")
    assert not nameless.exists()


@pytest.mark.parametrize(("signum", "exits"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_signal_ends_it_with_its_code(signum, exits, tmp_path, monkeypatch):
    monkeypatch.setattr(run.Benchmark, "run", lambda benchmark: os.kill(os.getpid(), signum))
    code, _, said = call("--out", tmp_path)
    assert (code, said.partition("PyTorch ")[2]) == (exits, "stopped; nothing was measured yet")


def test_help_names_every_script_and_the_defaults_that_hold():
    code, printed, _ = call("--help")
    assert code == 0
    for name, answers in SCRIPTS.items():
        assert f" measure.{name}: {answers} " in printed
        assert find_spec(f"measure.{name}")
    defaults = Settings()
    for option in ("encodings", "lengths", "causal", "modes", "head_dims", "heads", "batches"):
        shown = ",".join(map(str, getattr(defaults, option)))
        assert f"[default: ({shown})]" in printed, option
    for shown in (defaults.dtype, f"{defaults.seconds:g}", f"{defaults.patience:g}"):
        assert f"[default: ({shown})]" in printed
