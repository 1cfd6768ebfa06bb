"""Checkpoints: whole or refused."""

import json
from dataclasses import asdict

import pytest
import torch
from safetensors.torch import load_file, save_file

from relattn_lab.checkpoint import DataCard, load_checkpoint, save_checkpoint
from relattn_lab.dataset import Dataset
from relattn_lab.support.progress import Silent
from tests.lab.small import SMALL, model, tokens, write_data

CARD = DataCard("chorales", "voices", {"low": 40, "high": 57})


TOKENS = ({"low": "40"}, {"high": 57.0}, {"high": None}, {"low": [1]}, {"low": True}, {"high": 200}, {"more": 1})


@pytest.fixture
def folder(tmp_path):
    save_checkpoint(tmp_path / "model", model(), CARD, "a card")
    return tmp_path / "model"


def test_it_comes_back_as_it_was_saved(folder):
    loaded, card = load_checkpoint(folder)
    assert card == CARD
    assert card.vocabulary.size == 20
    assert not loaded.training
    assert torch.equal(loaded(tokens(1, 9)).logits, model()(tokens(1, 9)).logits)


def test_it_replaces_the_one_before(folder):
    save_checkpoint(folder, model(seed=1), CARD, "a card")
    loaded, _ = load_checkpoint(folder)
    assert torch.equal(loaded(tokens(1, 9)).logits, model(seed=1)(tokens(1, 9)).logits)
    assert [path.name for path in folder.parent.iterdir()] == ["model"]


@pytest.mark.parametrize("left", [0, 5, 200, -1])
def test_weights_that_are_cut_off(folder, left):
    path = folder / "model.safetensors"
    path.write_bytes(path.read_bytes()[:left])
    with pytest.raises(ValueError) as caught:
        load_checkpoint(folder)
    assert str(caught.value).startswith(f"checkpoint: got {folder}, which is cut off or broken (")
    assert str(caught.value).endswith("); expected a folder `model` that `relattn-lab compare` wrote; train it anew")
    assert "\n" not in str(caught.value)


def test_a_configuration_with_the_older_word_for_an_error(folder):
    config = json.loads((folder / "config.json").read_text())
    config["encoding_options"]["beyond"] = "refuse"
    (folder / "config.json").write_text(json.dumps(config))
    with pytest.raises(ValueError) as caught:
        load_checkpoint(folder)
    assert "beyond: got 'refuse'; expected one of 'error', 'clamp', 'zero'" in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("name", ["config.json", "data.json"])
def test_a_file_that_is_cut_off(folder, name):
    path = folder / name
    path.write_text(path.read_text()[:-5])
    with pytest.raises(ValueError, match="is cut off or broken"):
        load_checkpoint(folder)


@pytest.mark.parametrize("name", ["config.json", "model.safetensors", "data.json"])
def test_a_file_that_is_missing(folder, name):
    (folder / name).unlink()
    with pytest.raises(FileNotFoundError) as caught:
        load_checkpoint(folder)
    assert str(caught.value) == (
        f"checkpoint: got {folder}, which holds no {name}; expected a folder `model` that `relattn-lab compare` wrote"
    )


def test_a_folder_that_is_missing(tmp_path):
    with pytest.raises(FileNotFoundError) as caught:
        load_checkpoint(tmp_path / "no")
    assert str(caught.value) == (
        f"checkpoint: got {tmp_path / 'no'}, which is no folder; expected a folder `model` that "
        "`relattn-lab compare` wrote"
    )


def test_a_weight_that_is_missing(folder):
    path = folder / "model.safetensors"
    weights = load_file(path)
    del weights["blocks.0.attention.encoding.relative_keys"]
    save_file(weights, path, metadata={"format": "pt"})
    with pytest.raises(ValueError, match=r"has weights that do not fit its config.json \(see blocks.0.attention.enc"):
        load_checkpoint(folder)


def test_weights_of_another_size(folder):
    values = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(values | {"width": 32}))
    with pytest.raises(ValueError, match=r"checkpoint: .*; train it anew"):
        load_checkpoint(folder)


def test_a_card_of_another_vocabulary(folder):
    (folder / "data.json").write_text(
        json.dumps({"data": "chorales", "kind": "voices", "tokens": {"low": 40, "high": 60}})
    )
    with pytest.raises(
        ValueError, match=r"has 23 tokens in data\.json and 20 in config\.json; expected .*; train it anew"
    ):
        load_checkpoint(folder)


@pytest.mark.parametrize(
    "card",
    [
        *({"tokens": {"low": 40, "high": 57} | changes} for changes in TOKENS),
        {"tokens": {"low": 40}},
        {"tokens": [40, 57]},
        {"kind": "paintings"},
        {"kind": "text"},
        {"data": 3},
        {"more": 1},
    ],
)
def test_a_card_of_other_types(folder, card):
    (folder / "data.json").write_text(json.dumps(asdict(CARD) | card))
    with pytest.raises(
        ValueError, match=r"^checkpoint: got .*, which is cut off or broken \(.*\); expected .*; train it anew$"
    ):
        load_checkpoint(folder)


def test_a_card_finds_its_data_from_everywhere(tmp_path, monkeypatch):
    write_data(tmp_path / "songs.json")
    monkeypatch.chdir(tmp_path)
    assert Dataset.load("songs.json", SMALL["length"], Silent()).card.data == str((tmp_path / "songs.json").resolve())


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf")])
def test_weights_that_are_not_finite(folder, value):
    path = folder / "model.safetensors"
    weights = load_file(path)
    weights["blocks.0.feed_forward.inner.weight"][2, 3] = value
    save_file(weights, path, metadata={"format": "pt"})
    with pytest.raises(ValueError) as caught:
        load_checkpoint(folder)
    assert str(caught.value) == (
        f"checkpoint: got {folder}, which has weights that are not finite (see "
        "blocks.0.feed_forward.inner.weight); expected "
        "a folder `model` that `relattn-lab compare` wrote; train it anew"
    )


@pytest.mark.parametrize("name", ["config.json", "data.json"])
def test_a_file_that_holds_other_bytes(folder, name):
    for content in (b"\xff\xfe", b"[" * 100_000, b"null", b"{}", b"3"):
        (folder / name).write_bytes(content)
        with pytest.raises(ValueError, match=r"^checkpoint: got .*; train it anew$"):
            load_checkpoint(folder)
