"""The command: what it prints, and one sentence for whatever goes wrong."""

import importlib.metadata
import json
import os
import re
import signal
import subprocess
import sys
from itertools import pairwise
from unittest.mock import patch

import pytest
import torch
from typer import rich_utils
from typer.testing import CliRunner

import relattn
from relattn.backends.select import BACKENDS
from relattn.cli import app as commands
from relattn.cli import console, doctor
from relattn.compiled.library import Kernels, kernels
from relattn_lab import compare as lab_compare
from relattn_lab.checkpoint import load_checkpoint
from relattn_lab.cli import compare as compare_command
from relattn_lab.compose import SHIPPED
from relattn_lab.encodings import ENCODINGS
from relattn_lab.evaluate import evaluate
from relattn_lab.media import MEDIA
from relattn_lab.settings import Settings
from tests.lab.small import write_data

SMALL = ["--length", "16", "--width", "16", "--depth", "1", "--heads", "2"]


def call(*arguments):
    """Run `relattn` in this process: its exit code, what it wrote to stdout and to stderr, blanks made single.

    rich reads COLUMNS when a console is made, which is when the first test in this process imports it.
    """
    with patch.object(console.out, "_width", 200), patch.object(console.err, "_width", 200):
        ran = CliRunner().invoke(commands.app, [str(argument) for argument in arguments], env={"COLUMNS": "200"})
    if ran.exception is not None and not isinstance(ran.exception, SystemExit):
        raise ran.exception
    return ran.exit_code, " ".join(ran.stdout.split()), " ".join(ran.stderr.split())


def refused(*arguments):
    """The sentence with which `relattn` refuses, after whatever it had done before."""
    code, out, err = call(*arguments)
    assert code == 2
    assert out == ""
    assert err.count("error: ") == 1
    return err.partition("error: ")[2]


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    return write_data(tmp_path_factory.mktemp("data") / "small.json")


@pytest.fixture(scope="module")
def compared(data):
    out = data.parent / "out"
    return out, call("compare", "--data", data, "--encodings", "rope,sinusoid", "--steps", 4, "--out", out, *SMALL)


def test_compare_prints_a_table_and_where_things_lie(compared):
    out, (code, printed, _) = compared
    assert code == 0
    for shown in ("n-gram", "rope", "sinusoid", "16 tokens", "64 tokens", f"report {out / 'report.html'}"):
        assert shown in printed, shown
    results = json.loads((out / "results.json").read_text())
    for encoding in ("rope", "sinusoid"):
        assert f"{results['summary'][encoding]['64']['mean']:.3f}" in printed
    assert f"relattn-lab compose --checkpoint {out / 'runs' / 'rope-seed0' / 'model'}" in printed


def test_what_compare_proposes_composes(compared, tmp_path):
    _, (_, printed, _) = compared
    proposed = re.search(r"compose --checkpoint (\S+)", printed).group(0).split()
    code, printed, _ = call(*proposed, "--prompt-steps", 3, "--steps", 4, "--seed", 7, "--out", tmp_path)
    assert code == 0
    assert "7 steps, 3 of them given" in printed
    written = {path.suffix: path for path in tmp_path.iterdir()}
    assert set(written) == {".html", ".mid", ".png"}
    assert str(written[".html"]) in printed
    assert str(written[".mid"]) in printed
    assert str(written[".png"]) in printed


def test_compose_from_nothing(compared, tmp_path):
    out, _ = compared
    checkpoint = out / "runs" / "sinusoid-seed0" / "model"
    code, printed, _ = call("compose", "--checkpoint", checkpoint, "--from-nothing", "--steps", 4, "--out", tmp_path)
    assert code == 0
    assert "4 steps, none of them given" in printed


def test_help_names_every_encoding_and_the_defaults_that_hold():
    code, printed, _ = call("compare", "--help")
    assert code == 0
    assert ", ".join(ENCODINGS) in printed
    defaults = Settings()
    for name in ("data", "minutes", "length", "width", "depth", "heads"):
        shown = f"{getattr(defaults, name):g}" if name == "minutes" else getattr(defaults, name)
        assert re.search(rf"--{name} .*?\[default: \(?{shown}\)?\]", printed), name
    assert f"[default: ({','.join(defaults.encodings)})]" in printed
    for command in ("compare", "compose", "doctor"):
        assert command in call("--help")[1]


def test_help_is_wrapped_once_and_flags_have_no_type():
    with patch.object(rich_utils, "MAX_WIDTH", 80):
        for command in ("compare", "reproduce", "compose", "bench", "convert", "doctor"):
            shown = CliRunner().invoke(commands.app, [command, "--help"]).stdout
            assert "<bool>" not in shown
            prose = [line.strip() for line in shown.partition("\u256d")[0].splitlines()]
            for line, after in pairwise(prose):
                # a line ends early only where the next word did not fit, or the paragraph ends
                assert not line or not after or len(line) + 1 + len(after.split()[0]) > 78, line
    assert "<bool>" not in call("--help")[1]


@pytest.mark.parametrize("value", [["--resume", "true"], ["--resume", "y"], ["--resume=false"]])
def test_a_flag_with_a_value_says_what_to_do(value):
    code, _, said = call("compare", *value)
    assert code == 2
    name, came = value if len(value) == 2 else value[0].split("=")
    words = " ".join(said.replace("│", " ").split())
    assert f"{name}: got '{came}' with it; expected no value; give --resume alone, or leave it out for no" in words


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (
            ["--encodings", "rope,tango"],
            "--encodings: got 'tango'; expected one of 'relative-heads', 'relative', 'relative+pitch+time',",
        ),
        (
            ["--encodings", "rope,relative+pitch+time", "--data", "songs.txt"],
            "--encodings: got 'relative+pitch+time' for songs.txt, whose tokens have no place on 'time' and 'pitch'; "
            'expected music in four voices for it, "chorales" or a .json file; leave it out, or name such data',
        ),
        (["--encodings", ""], "--encodings: got ''; expected one of"),
        (["--seeds", "0,x"], "--seeds: got '0,x'; expected whole numbers separated by commas, such as 0,1,2"),
        (["--seeds", "-1"], "--seeds: got -1; expected whole numbers from 0"),
        (["--minutes", "3", "--steps", "3"], "--minutes, --steps: got 3.0 and 3; expected one of the two"),
        (["--steps", "0"], "--steps: got 0; expected an int of at least 1"),
        (["--steps", "99999999999999999999"], "--steps: got 99999999999999999999; expected at most 2**31 - 1"),
        (["--length", "18"], "--length: got 18 for "),
        (["--width", "17"], "--width, --heads: got 17 and 2; expected a width that the heads divide"),
        (["--data", "missing.json"], "--data: "),
        (["--resume"], "--resume: "),
    ],
)
def test_compare_refuses_in_one_sentence(data, tmp_path, arguments, said):
    out = tmp_path / "out"
    assert refused("compare", "--out", out, "--data", data, *SMALL, *arguments).startswith(said)
    assert not out.exists()


def test_a_config_is_read_and_the_command_line_goes_before(compared, data, tmp_path):
    """What a comparison wrote beside its results gives the same comparison again; steps named take the place of its."""
    out, _ = compared
    code, _, _ = call("compare", "--config", out / "config.toml", "--steps", 2, "--out", tmp_path / "again")
    assert code == 0
    before, after = (json.loads((folder / "results.json").read_text()) for folder in (out, tmp_path / "again"))
    assert after["settings"] == before["settings"] | {"steps": 2, "steps_taken": 2}
    config = tmp_path / "a.toml"
    config.write_text("steps = 3\n\nwidht = 3\n")
    said = refused("compare", "--config", config, "--data", data, "--out", tmp_path / "out")
    assert said.startswith(
        f"--config: {config}, line 3: got the option 'widht'; expected some of data, encodings, seeds"
    )
    config.write_text("steps = 3\nlength = 0\n")
    said = refused("compare", "--config", config, "--data", data, "--out", tmp_path / "out")
    assert said.startswith(f"{config}: length: got 0; ")
    said = refused("compare", "--config", config, "--data", data, "--length", -1, "--out", tmp_path / "out")
    assert said.startswith("--length: got -1; ")


def test_whom_to_tell(data, tmp_path, monkeypatch):
    monkeypatch.setattr(compare_command, "find_spec", lambda package: None)
    out = ["--data", data, "--out", tmp_path / "out"]
    assert refused("compare", "--report-to", "wandb", *out) == (
        "--report-to: got 'wandb', whose package is not installed; expected it; install it: pip install wandb"
    )
    assert refused("compare", "--report-to", "paper", *out) == (
        "--report-to: got 'paper'; expected one of 'tensorboard', 'wandb'"
    )


def test_a_paper_is_reproduced_and_its_models_meet_longer_windows(data, tmp_path):
    out = tmp_path / "out"
    asked = ["reproduce", "jsb", "--data", data, "--out", out]
    code, printed, _ = call(*asked, "--steps", 2, "--seeds", "0", "--encodings", "relative,rope", *SMALL)
    assert code == 0
    for shown in ("n-gram, interpolated", "`rope`", "0.357 is missed by", f"table {out / 'table.md'}"):
        assert shown in printed
    assert refused(*asked, *SMALL).startswith(f"--out: got {out}, which holds another comparison")
    assert call(*asked, "--resume")[0] == 0
    code, printed, _ = call("reproduce", "lengths", "--data", data, "--out", out)
    assert code == 0
    assert "| `relative` | interpolated |" in printed
    assert refused("reproduce", "lengths", "--data", data, "--out", out, "--steps", 3).startswith(
        "options: got --steps; expected --data and --out alone, for `lengths` trains nothing"
    )
    assert refused("reproduce", "maestro", "--data", data, "--out", out).startswith("experiment: got 'maestro'")


def test_compose_takes_the_model_that_comes_with_relattn(tmp_path):
    code, printed, _ = call("compose", "--out", tmp_path, "--prompt-steps", 8, "--steps", 4)
    assert code == 0
    assert "continued by relative (seed 0): 12 steps, 8 of them given" in printed
    assert {path.suffix for path in tmp_path.iterdir()} == {".html", ".mid", ".png"}


def test_the_model_that_comes_with_relattn_is_better_than_the_ngram():
    """As its card says; and it composes with pieces that it was not trained on."""
    nats, ngram = re.findall(r"takes (\d\.\d{3})", (SHIPPED / "README.md").read_text())
    assert float(nats) < float(ngram)
    model, card = load_checkpoint(SHIPPED)
    held_out = MEDIA[card.kind].load(card.data).evaluation_windows("test", model.config.length)
    assert evaluate(model, held_out).mean < float(ngram)  # on a third of the test pieces


def test_compare_refuses_a_folder_that_holds_another_comparison(compared, data):
    out, _ = compared
    assert refused("compare", "--out", out, "--data", data, *SMALL) == (
        f"--out: got {out}, which holds another comparison; expected a new folder; pass --resume to go on with it, or "
        "choose another --out"
    )
    assert refused("compare", "--out", out, "--resume", "--width", 32) == (
        f"--width: got 32; expected 16, as the comparison in {out} has it; leave the option out to go on with it, "
        "or choose another --out"
    )


def test_compare_resumed_when_all_is_done_prints_the_same_table(compared):
    out, (_, printed, _) = compared
    assert call("compare", "--resume", "--out", out)[:2] == (0, printed)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (
            ["--temperature", "0"],
            "--temperature: got 0; expected 1e-06 to 1e+06; 1e-06 takes the likeliest token, 1e+06 any",
        ),
        (
            ["--temperature", "1e-40"],
            "--temperature: got 1e-40; expected 1e-06 to 1e+06; 1e-06 takes the likeliest token, 1e+06 any",
        ),
        (["--top-p", "2"], "--top-p: got 2; expected a probability above 0, at most 1"),
        (
            ["--prompt-steps", "5000"],
            "--prompt-steps: got 5000; expected at most 40, the steps of the longest held-out piece",
        ),
        (["--steps", "0"], "--steps: got 0; expected 1 to 2**31 - 1"),
        (["--steps", "99999999999999999999"], "--steps: got 99999999999999999999; expected 1 to 2**31 - 1"),
        (
            ["--checkpoint", "nowhere"],
            "--checkpoint: got nowhere, which is no folder; expected a folder `model` that `relattn-lab compare` wrote",
        ),
    ],
)
def test_compose_refuses_in_one_sentence(compared, tmp_path, arguments, said):
    out, _ = compared
    checkpoint = ["--checkpoint", out / "runs" / "rope-seed0" / "model"]
    assert refused("compose", *checkpoint, "--out", tmp_path / "out", *arguments) == said
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(("signum", "exits"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_an_interrupt_says_what_is_kept_and_how_to_go_on(signum, exits, data, tmp_path, monkeypatch):
    train = lab_compare.train

    def train_and_interrupt(config, plan, seed, material, folder, progress, division, report_to):
        def advance(step, note):
            progress(step, note)
            if config.encoding == "none" and step == 2:
                os.kill(os.getpid(), signum)

        return train(config, plan, seed, material, folder, advance, division)

    monkeypatch.setattr(lab_compare, "train", train_and_interrupt)
    out = tmp_path / "out"
    code, printed, said = call(
        "compare", "--data", data, "--encodings", "rope,none", "--steps", 4, "--out", out, *SMALL
    )
    assert (code, printed) == (exits, "")
    assert said.endswith(
        "stopped; 1 of 2 runs are done, and 2 of the 4 steps of none, seed 0; this is kept. Go on with: relattn "
        f"compare --resume --out {out}"
    )
    monkeypatch.undo()
    assert call("compare", "--resume", "--out", out)[0] == 0


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
            "accelerate",
            ["compare"],
            "relattn: got a Python without accelerate; expected the extra `lab`; install it: "
            "pip install '.[lab]' in a clone of relattn",
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
