"""Longer windows: what each treatment makes of a model, and the table of an experiment's models."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch

from relattn_lab.checkpoint import load_checkpoint
from relattn_lab.evaluate import evaluate
from relattn_lab.lengths import FACTORS, INTERPOLATED, TREATMENTS, ZEROED, Lengths, options_of, treated
from relattn_lab.media import load_corpus
from relattn_lab.reproduction import start
from tests.lab import small
from tests.lab.small import SMALL, Recorder, write_data

L = SMALL["length"]


def test_rows_in_a_longer_table_lie_on_lines_between_those_trained():
    model = small.model("relative")
    options = options_of("relative", INTERPOLATED, L, 4 * L)
    assert options is not None
    longer = treated(model, options)
    for name, weight in model.state_dict().items():
        if name.endswith("relative_keys"):
            rows, stretched = weight[0].numpy(), longer.state_dict()[name][0].numpy()
            places = np.linspace(0, L - 1, 4 * L)
            wanted = [np.interp(places, np.arange(L), column) for column in rows.T]
            np.testing.assert_allclose(stretched, np.stack(wanted, axis=1), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("encoding", ["relative", "relative-heads", "relative+pitch+time", "rope"])
def test_within_the_trained_length_zeroed_tables_are_as_they_were(encoding: str):
    model, ids = small.model(encoding), small.tokens(2, L)
    options = options_of(encoding, ZEROED, L, L)
    if encoding == "rope":
        assert options is None
        return
    assert options is not None
    with torch.no_grad():
        torch.testing.assert_close(treated(model, options)(ids).logits, model(ids).logits)
        longer = small.tokens(2, 2 * L)
        assert not torch.allclose(treated(model, options)(longer).logits, model(longer).logits)


def test_rotary_angles_are_divided():
    model, ids = small.model("rope"), small.tokens(1, 2 * L)
    options = options_of("rope", INTERPOLATED, L, 2 * L)
    assert options == {"scaling": {"rope_type": "linear", "factor": 2.0}}
    with torch.no_grad():
        assert not torch.allclose(treated(model, options)(ids).logits, model(ids).logits)


@pytest.mark.parametrize("encoding", ["t5", "alibi", "shaw", "sinusoid", "none", "transformer-xl"])
def test_others_are_as_trained(encoding: str):
    assert [options_of(encoding, treatment, L, 2 * L) is None for treatment in TREATMENTS] == [False, True, True]


@pytest.mark.slow
def test_the_models_of_an_experiment_are_evaluated_once(tmp_path: Path):
    data, out = write_data(tmp_path / "data.json"), tmp_path / "out"
    given = {**SMALL, "data": str(data), "encodings": ("relative", "key-query"), "seeds": (0, 1), "steps": 2}
    start(given, out, Recorder()).run()
    table = Lengths(str(data), out, Recorder()).run()
    assert (out / "lengths.md").read_text() == table
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in table.splitlines()]
    assert rows[0][2:] == [str(factor * L) for factor in FACTORS]
    assert [row[:2] for row in rows[2:]] == [
        ["`key-query`", "as trained"], ["`relative`", "clamped"], ["`relative`", "zeroed"],
        ["`relative`", "interpolated"],
    ]  # fmt: skip
    assert rows[2][3:] == ["refused"] * 3
    assert rows[4][2] == "" and all("±" in cell for cell in rows[4][3:])
    record = json.loads((out / "runs/relative-seed1/lengths.json").read_bytes())
    model, _ = load_checkpoint(out / "runs/relative-seed1/model")
    windows = load_corpus(str(data)).evaluation_windows("test", 2 * L)
    assert record["losses"]["as trained"][str(2 * L)] == pytest.approx(evaluate(model, windows).mean)
    again = Recorder()
    assert Lengths(str(data), out, again).run() == table
    assert not again.begun


def test_a_folder_without_models(tmp_path: Path):
    with pytest.raises(
        FileNotFoundError, match="which holds no trained model; expected the folder of `relattn-lab rep"
    ):
        Lengths("chorales", tmp_path, Recorder())
