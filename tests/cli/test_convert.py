"""`relattn convert`: files there and back, what it prints, and one sentence for whatever goes wrong."""

import pickle
import re
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from relattn.cli import console
from relattn.convert import FORMATS, to_relattn
from tests.cli.test_commands import call, refused
from tests.convert.cases import CASES
from tests.convert.test_round_trips import assert_same_bits
from tests.lab.small import model as small_model

pytest_plugins = ["tests.contract.fresh"]

TO = ("--from", "transfo_xl", "--to", "relattn")
BACK = ("--from", "relattn", "--to", "transfo_xl")


@pytest.fixture
def checkpoint(rng: np.random.Generator) -> dict[str, Tensor]:
    return CASES["transfo_xl"].checkpoint()


def test_there_and_back(checkpoint: dict[str, Tensor], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(console.out, "width", 160)  # so that no name is broken
    before, ours, after = (tmp_path / f"{name}.safetensors" for name in ("before", "ours", "after"))
    save_file(checkpoint, before)
    code, printed, errors = call("convert", before, ours, *TO)
    assert (code, errors) == (0, "")
    for shown in (
        "2 attention layers from transfo_xl to relattn", "transformer.layers.0.dec_attn", "3 of 4",
        "TransformerXLEmbedding(3, 4, embed_dim=12", "2 other tensors as they were",
        f"note: {FORMATS['transfo_xl'].note}", f"written {ours}",
    ):  # fmt: skip
        assert shown in printed, shown
    assert_same_bits(load_file(ours), to_relattn(checkpoint, "transfo_xl"))

    code, printed, _ = call("convert", ours, after, *BACK)
    assert code == 0
    assert "2 attention layers from relattn to transfo_xl" in printed
    assert_same_bits(load_file(after), checkpoint)


@pytest.mark.parametrize("suffix", [".bin", ".pt", ".pth", ".ckpt"])
@pytest.mark.parametrize("inside", [None, "model", "state_dict"])
def test_pytorch_s_files_are_read(
    checkpoint: dict[str, Tensor], suffix: str, inside: str | None, tmp_path: Path
) -> None:
    """RETURNN and trainers keep the tensors beside other plain values."""
    path, out = tmp_path / f"model{suffix}", tmp_path / "out.safetensors"
    torch.save(checkpoint if inside is None else {inside: checkpoint, "epoch": 3, "version": "1"}, path)
    assert call("convert", path, out, *TO)[0] == 0
    assert_same_bits(load_file(out), to_relattn(checkpoint, "transfo_xl"))


def test_tensors_that_share_memory_are_written_each_for_itself(checkpoint: dict[str, Tensor], tmp_path: Path) -> None:
    """As tied weights of a .bin file do."""
    checkpoint["crit.out_layers.0.weight"] = checkpoint["transformer.word_emb.emb_layers.0.weight"]
    checkpoint["a_part"] = checkpoint["crit.out_layers.0.weight"][1:, 2]
    path, out = tmp_path / "model.bin", tmp_path / "out.safetensors"
    torch.save(checkpoint, path)
    assert call("convert", path, out, *TO)[0] == 0
    assert_same_bits(
        load_file(out), {name: one.contiguous() for name, one in to_relattn(checkpoint, "transfo_xl").items()}
    )


class Harmful:
    """Pickled, it runs code when it is loaded."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple:
        return Path.touch, (self.path,)


def test_code_in_a_checkpoint_is_never_run(tmp_path: Path) -> None:
    path, proof = tmp_path / "model.pt", tmp_path / "it_ran"
    torch.save({"model": Harmful(proof)}, path)
    with path.open("rb") as file:
        torch.load(file, weights_only=False)
    assert proof.exists(), "the trap works"
    proof.unlink()
    assert refused("convert", path, tmp_path / "out.safetensors", *TO) == (
        f"in: got {path}, which is damaged, or holds more than tensors and plain values, for which code would "
        "have to be "
        "run; expected tensors by name; where you trust it, load it and save its state_dict() alone"
    )
    assert not proof.exists()


def damaged(path: Path) -> None:
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


@pytest.mark.parametrize("spoil", [damaged, lambda path: path.write_bytes(b""), lambda path: path.write_text("hello")])
@pytest.mark.parametrize("suffix", [".safetensors", ".pt"])
def test_a_damaged_file(checkpoint: dict[str, Tensor], suffix: str, spoil, tmp_path: Path) -> None:
    path, out = tmp_path / f"model{suffix}", tmp_path / "out.safetensors"
    (save_file if suffix == ".safetensors" else torch.save)(checkpoint, path)
    spoil(path)
    assert refused("convert", path, out, *TO).startswith(f"in: got {path}, which is damaged, or ")
    assert not out.exists()


def test_any_byte_of_a_pickle_may_be_wrong(tmp_path: Path) -> None:
    """An old file, which is a bare pickle, cut or altered at every place: a sentence, whatever it makes of itself."""
    good = pickle.dumps({"model": [1.5, {2: None}]}, protocol=2)
    path = tmp_path / "model.pt"
    for place in range(len(good)):
        for bad in (good[:place], good[:place] + b"\xff" + good[place + 1 :]):
            path.write_bytes(bad)
            assert refused("convert", path, tmp_path / "out.safetensors", *TO).startswith(f"in: got {path}, which ")


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ({"optimizer": {}, "step": 3}, "dict with optimizer, step"),
        ({}, "dict with nothing in it"),
        ([torch.ones(2)], "list"),
    ],
)
def test_a_file_without_tensors_by_name(content: object, said: str, tmp_path: Path) -> None:
    path = tmp_path / "model.pt"
    torch.save(content, path)
    assert refused("convert", path, tmp_path / "out.safetensors", *TO) == (
        f"in: got {path}, which holds {said}; expected tensors by name, at the top or under state_dict or model or "
        "model_state_dict"
    )


def test_a_foreign_checkpoint(rng: np.random.Generator, tmp_path: Path) -> None:
    path, out = tmp_path / "bert.safetensors", tmp_path / "out.safetensors"
    save_file(CASES["bert_relative_key"].checkpoint(), path)
    said = refused("convert", path, out, *TO)
    assert said.startswith("checkpoint: no attention layer of transfo_xl in it; looked for names ending in qkv_net")
    assert said.endswith("it may be bert_relative_key or bert_relative_key_query")
    assert not out.exists()


def test_names_of_files(checkpoint: dict[str, Tensor], tmp_path: Path) -> None:
    path, out = tmp_path / "in.safetensors", tmp_path / "out.safetensors"
    save_file(checkpoint, path)
    missing = tmp_path / "missing.safetensors"
    assert refused("convert", missing, out, *TO) == f"in: got {missing}, which is no file; expected a checkpoint"
    text = tmp_path / "in.txt"
    text.touch()
    assert refused("convert", text, out, *TO) == (
        f"in: got {text}; expected a file that ends in .safetensors, .bin, .pt, .pth, .ckpt"
    )
    pt, nowhere = tmp_path / "out.pt", tmp_path / "none" / "out.safetensors"
    assert refused("convert", path, pt, *TO) == f"out: got {pt}; expected a name that ends in .safetensors"
    assert refused("convert", path, nowhere, *TO) == (
        f"out: got {nowhere}, whose folder is not there; expected a name in a folder; make the folder first"
    )
    out.write_text("dear")
    assert refused("convert", path, out, *TO) == (
        f"out: got {out}, which is there already; expected a new file; give another name, or remove it"
    )
    assert out.read_text() == "dear"


def test_formats(tmp_path: Path) -> None:
    files = tmp_path / "in.safetensors", tmp_path / "out.safetensors"
    known = ", ".join(("relattn", *FORMATS))
    assert refused("convert", *files, "--from", "bert", "--to", "relattn") == (
        f"--from: got 'bert'; expected one of {known}"
    )
    for pair in (("relattn", "relattn"), ("transfo_xl", "bert_relative_key")):
        assert refused("convert", *files, "--from", pair[0], "--to", pair[1]) == (
            f"--from, --to: got {pair[0]!r} and {pair[1]!r}; expected 'relattn' as one of them, and once"
        )


def test_the_help_names_every_format() -> None:
    code, printed, _ = call("convert", "--help")
    assert code == 0
    assert set(re.findall(r"\w+", printed)) >= {"relattn", *FORMATS}


@pytest.mark.parametrize("form", [TO, BACK])
def test_a_model_of_the_lab_is_said_to_be_one(form: tuple[str, ...], tmp_path: Path) -> None:
    """Rotary positions have no parameters, so no format holds its layers; they are relattn's layers all the same."""
    small_model("rope").save_pretrained(tmp_path / "model")
    said = refused("convert", tmp_path / "model" / "model.safetensors", tmp_path / "out.safetensors", *form)
    (theirs,) = {*form} - {"--from", "--to", "relattn"}
    assert said == (
        f"in: got {tmp_path / 'model' / 'model.safetensors'}, a model that `relattn-lab compare` or "
        f"`relattn-lab reproduce` wrote, with relattn's own layers; expected one whose layers {theirs} has; compose "
        f"with it by `relattn-lab compose --checkpoint {tmp_path / 'model'}`, or load it by "
        "relattn_lab.checkpoint.load_checkpoint"
    )
    assert not (tmp_path / "out.safetensors").exists()
