"""The command: what it prints, and one sentence for whatever goes wrong."""

import importlib.metadata
import re
import subprocess
import sys
from itertools import pairwise
from unittest.mock import patch

import pytest
import torch
import typer
from typer import rich_utils
from typer.testing import CliRunner

import relattn
from relattn.backends.cpu.library import Kernels, kernels
from relattn.backends.select import BACKENDS
from relattn.cli import app as commands
from relattn.cli import console, doctor
from relattn_lab.cli import app as lab_commands


def call(*arguments, app=commands.app):
    """Run an app in this process: its exit code, what it wrote to stdout and to stderr, blanks made single.

    rich reads COLUMNS when a console is made, which is when the first test in this process imports it.
    """
    with patch.object(console.out, "_width", 200), patch.object(console.err, "_width", 200):
        ran = CliRunner().invoke(app, [str(argument) for argument in arguments], env={"COLUMNS": "200"})
    if ran.exception is not None and not isinstance(ran.exception, SystemExit):
        raise ran.exception
    return ran.exit_code, " ".join(ran.stdout.split()), " ".join(ran.stderr.split())


def refused(*arguments, app=commands.app):
    """The sentence with which the app refuses, after whatever it had done before."""
    code, out, err = call(*arguments, app=app)
    assert code == 2
    assert out == ""
    assert err.count("error: ") == 1
    return err.partition("error: ")[2]


@pytest.mark.parametrize("app", [commands.app, lab_commands.app])
def test_help_is_wrapped_once_and_flags_have_no_type(app):
    with patch.object(rich_utils, "MAX_WIDTH", 80):
        for command in typer.main.get_command(app).commands:
            shown = CliRunner().invoke(app, [command, "--help"]).stdout
            assert "<bool>" not in shown
            prose = [line.strip() for line in shown.partition("\u256d")[0].splitlines()]
            for line, after in pairwise(prose):
                # a line ends early only where the next word did not fit, or the paragraph ends
                assert not line or not after or len(line) + 1 + len(after.split()[0]) > 78, line
    assert "<bool>" not in call("--help", app=app)[1]


def test_doctor_tells_versions_devices_and_backends():
    code, printed, _ = call("doctor")
    assert code == 0
    assert f"relattn │ {relattn.__version__} " in printed
    assert f"torch │ {importlib.metadata.version('torch')} " in printed
    assert "cpu" in printed
    for name in BACKENDS:
        assert f"│ {name} " in printed
    assert "it has no relative keys" in printed
    assert "usable" in printed


def test_doctor_tells_of_the_threads_of_the_compiled_kernels(monkeypatch):
    found = kernels()
    assert isinstance(found, Kernels)
    assert re.search(rf"native kernels\s+│ {found.name}, the threads of torch", call("doctor")[1])
    monkeypatch.setattr(doctor, "has_threads", lambda: False)
    assert f"{found.name}, one thread: no OpenMP runtime was found" in call("doctor")[1]
    monkeypatch.setattr(doctor, "kernels", lambda: "RELATTN_NATIVE=off switches its kernels off")
    assert re.search(r"native kernels\s+│ none: RELATTN_NATIVE=off switches its kernels off", call("doctor")[1])


def test_doctor_tells_what_is_there_for_several_processes(monkeypatch):
    printed = call("doctor")[1]
    assert re.search(r"gloo\s+│ there, for CPUs", printed)
    assert re.search(r"DeviceMesh\s+│ there: relattn.distributed splits sequences and heads over one", printed)
    assert f"accelerate │ {importlib.metadata.version('accelerate')}, by which" in printed
    monkeypatch.setattr(torch.distributed, "is_nccl_available", lambda: True)
    assert re.search(r"nccl\s+│ there, for one GPU per process", call("doctor")[1])
    monkeypatch.setattr(torch.distributed, "is_available", lambda: False)
    printed = call("doctor")[1]
    assert re.search(r"torch.distributed\s+│ not in this build of torch", printed)
    assert "gloo" not in printed


def test_doctor_sees_a_backend_that_computes_wrongly(monkeypatch):
    run = type(BACKENDS["dense"]).run

    def wrong(self, problem):
        output, lse = run(self, problem)
        return output + 0.5, lse

    monkeypatch.setattr(type(BACKENDS["dense"]), "run", wrong)
    assert re.search(r"│ dense │ wrong by 0.5", call("doctor")[1])


def test_doctor_tries_one_query_too(monkeypatch):
    """Some backends have a kernel of its own for it."""
    run = type(BACKENDS["dense"]).run

    def wrong(self, problem):
        output, lse = run(self, problem)
        return output + (0.5 if output.shape[2] == 1 else 0.0), lse

    monkeypatch.setattr(type(BACKENDS["dense"]), "run", wrong)
    assert re.search(r"│ dense │ usable │ usable │ wrong by 0.5", call("doctor")[1])


def test_doctor_shows_what_a_backend_raises(monkeypatch):
    """Triton compiles on the first call, and says only then that it finds no compiler."""

    def failing(self, problem):
        raise RuntimeError("Failed to find C compiler [gcc]\nmore of it")

    monkeypatch.setattr(type(BACKENDS["dense"]), "run", failing)
    printed = call("doctor")[1]
    assert "fails: RuntimeError: Failed" in printed
    assert "more of it" not in printed


def test_doctor_names_a_package_that_is_missing(monkeypatch):
    monkeypatch.setattr(doctor, "PACKAGES", ("no-such-package",))
    assert "no-such-package │ not installed" in call("doctor")[1]


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_doctor_says_why_there_is_no_gpu():
    assert re.search(r"cuda │ none: (torch was built without CUDA|no GPU found)", call("doctor")[1])


def run_without(package, *arguments):
    """`relattn` in a process in which `package` cannot be imported."""
    script = f"import sys; sys.modules[{package!r}] = None; from relattn.cli import main; main()"
    return subprocess.run([sys.executable, "-c", script, *arguments], capture_output=True, text=True)


@pytest.mark.one_in(3)
@pytest.mark.parametrize(
    ("package", "arguments", "said"),
    [
        (
            "typer",
            ["doctor"],
            "relattn: got a Python without typer; expected the extra `cli`; install it: pip install '.[cli]' in a "
            "clone of relattn",
        ),
        (
            "rich",
            ["doctor"],
            "relattn: got a Python without rich; expected the extra `cli`; install it: pip install '.[cli]' in a "
            "clone of relattn",
        ),
        (
            "safetensors",
            ["convert", "a.safetensors", "b.safetensors", "--from", "transfo_xl", "--to", "relattn"],
            "relattn: got a Python without safetensors; expected the extra `cli`; install it: pip install '.[cli]' in "
            "a clone of relattn",
        ),
    ],
)
def test_without_the_extra_one_sentence(package, arguments, said):
    ran = run_without(package, *arguments)
    assert (ran.returncode, ran.stdout) == (2, "")
    assert ran.stderr.strip() == f"error: {said}"


def test_importing_relattn_loads_nothing_of_the_command():
    script = (
        "import sys, relattn, relattn.cli; print([m for m in ('typer', 'rich', 'transformers') if m in sys.modules])"
    )
    assert subprocess.run([sys.executable, "-c", script], capture_output=True, text=True).stdout.strip() == "[]"
