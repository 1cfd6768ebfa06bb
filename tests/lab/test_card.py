"""The model card of a checkpoint, and what goes to the Hub with a model."""

import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from huggingface_hub import HfApi, ModelCard

from relattn_lab.card import model_card
from relattn_lab.checkpoint import DataCard, load_checkpoint, save_checkpoint
from tests.lab import small

CARD = DataCard("chorales", "voices", {"low": 40, "high": 57})


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    model = small.model("t5")
    told = model_card(model, "chorales", 4000, 0.38123, "relattn-lab compare --config config.toml")
    save_checkpoint(tmp_path / "model", model, CARD, told)
    return tmp_path / "model"


def test_the_card_says_what_the_model_is(folder: Path):
    card = ModelCard.load(folder / "README.md")
    assert card.data.library_name == "relattn"
    assert card.data.tags == ["relattn", "relative-attention", "t5"]
    for told in ("`t5`: a bias for each bucket of offsets (Raffel et al. 2020, T5)", "width 16, depth 1, 2 heads, ",
                 "| training | 4,000 steps, windows of 16 tokens |", "0.3812 nats per token at the end",
                 "relattn-lab compare --config config.toml", "relattn-lab compose --checkpoint ."):  # fmt: skip
        assert told in card.text


def test_what_was_pushed_can_be_loaded_back(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Offline: the Hub is a folder."""
    asked: list[dict[str, Any]] = []

    def create(self: HfApi, repo_id: str, **options: Any) -> Any:
        asked.append({"repo_id": repo_id, "token": self.token, **options})
        return type("Repo", (), {"repo_id": repo_id})

    def upload(self: HfApi, *, repo_id: str, folder_path: str, **options: Any) -> str:
        asked.append(options)
        shutil.copytree(folder_path, tmp_path / "hub" / repo_id)
        return f"hub/{repo_id}"

    monkeypatch.setattr(HfApi, "create_repo", create)
    monkeypatch.setattr(HfApi, "upload_folder", upload)
    model, card = load_checkpoint(folder)
    assert model.push_to_hub("me/bach", token="secret", private=True, commit_message="first") == "hub/me/bach"
    assert asked == [
        {"repo_id": "me/bach", "token": "secret", "private": True, "exist_ok": True}, {"commit_message": "first"}
    ]  # fmt: skip
    back, same = load_checkpoint(tmp_path / "hub/me/bach")
    assert same == card == CARD
    for name, weight in model.state_dict().items():
        assert torch.equal(weight, back.state_dict()[name])
    for name in ("README.md", "data.json", "config.json"):
        assert (tmp_path / "hub/me/bach" / name).read_bytes() == (folder / name).read_bytes()
