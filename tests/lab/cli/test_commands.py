"""The command `relattn-lab`: what it prints, and one sentence for whatever goes wrong."""

import json
import os
import re
import signal
from functools import partial

import pytest

from relattn_lab import compare as lab_compare
from relattn_lab.checkpoint import load_checkpoint
from relattn_lab.cli import app as commands
from relattn_lab.cli import compare as compare_command
from relattn_lab.compose import SHIPPED
from relattn_lab.encodings import ENCODINGS
from relattn_lab.evaluate import evaluate
from relattn_lab.media import MEDIA
from relattn_lab.settings import Settings
from tests.cli import test_commands as of_relattn
from tests.lab.small import write_data

SMALL = ["--length", "16", "--width", "16", "--depth", "1", "--heads", "2"]
call, refused = (partial(one, app=commands.app) for one in (of_relattn.call, of_relattn.refused))


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
    for command in ("compare", "compose", "reproduce"):
        assert command in call("--help")[1]


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


@pytest.mark.slow
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


def test_compose_takes_the_model_that_comes_with_the_lab(tmp_path):
    code, printed, _ = call("compose", "--out", tmp_path, "--prompt-steps", 8, "--steps", 4)
    assert code == 0
    assert "continued by relative (seed 0): 12 steps, 8 of them given" in printed
    assert {path.suffix for path in tmp_path.iterdir()} == {".html", ".mid", ".png"}


def test_the_model_that_comes_with_the_lab_is_better_than_the_ngram():
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


@pytest.mark.one_in(2)
@pytest.mark.parametrize(("signum", "exits"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_an_interrupt_says_what_is_kept_and_how_to_go_on(signum, exits, data, tmp_path, monkeypatch):
    train = lab_compare.train

    def train_and_interrupt(config, plan, seed, dataset, folder, progress, parallel, report_to):
        def advance(step, note):
            progress(step, note)
            if config.encoding == "none" and step == 2:
                os.kill(os.getpid(), signum)

        return train(config, plan, seed, dataset, folder, advance, parallel)

    monkeypatch.setattr(lab_compare, "train", train_and_interrupt)
    out = tmp_path / "out"
    code, printed, said = call(
        "compare", "--data", data, "--encodings", "rope,none", "--steps", 4, "--out", out, *SMALL
    )
    assert (code, printed) == (exits, "")
    assert said.endswith(
        "stopped; 1 of 2 runs are done, and 2 of the 4 steps of none, seed 0; this is kept. Go on with: "
        f"relattn-lab compare --resume --out {out}"
    )
    monkeypatch.undo()
    assert call("compare", "--resume", "--out", out)[0] == 0
