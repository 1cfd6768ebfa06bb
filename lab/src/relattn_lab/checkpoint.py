"""A trained model in a folder: Hugging Face's files, and what its tokens mean."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from safetensors import SafetensorError

from relattn.cli.files import reason_of
from relattn_lab.card import FILE as CARD_FILE
from relattn_lab.media import MEDIA
from relattn_lab.model import LabModel
from relattn_lab.support.files import as_json, whole_folder

DATA_FILE = "data.json"
EXPECTED = "a folder `model` that `relattn-lab compare` wrote"
BROKEN = (SafetensorError, OSError, ValueError, TypeError, KeyError, AttributeError, RuntimeError, RecursionError)
"""What damaged files make of the libraries that read them."""


@dataclass(frozen=True)
class DataCard:
    """What a checkpoint records about its data: a name or a path, their kind, and what the tokens stand for.

    kind: a key of `MEDIA`; tokens: the fields of the vocabulary, whole numbers.

    Raises TypeError: for values of another type; ValueError: for another kind.
    """

    data: str
    kind: str
    tokens: dict[str, int]

    def __post_init__(self) -> None:
        if type(self.data) is not str or any(type(number) is not int for number in self.tokens.values()):
            raise TypeError(f"data, tokens: got {self.data!r} and {self.tokens!r}; expected a text and whole numbers")
        if self.kind not in MEDIA:
            raise ValueError(f"kind: got {self.kind!r}; expected one of {', '.join(MEDIA)}")

    @property
    def vocabulary(self) -> Any:
        """The tokens' meaning."""
        return MEDIA[self.kind].vocabulary(**self.tokens)


def save_checkpoint(folder: Path, model: LabModel, card: DataCard, told: str) -> None:
    """Write the model, `data.json` and `README.md`, the model card `told`; `folder` appears only once it is whole.

    The model keeps the two, and `save_pretrained` and `push_to_hub` take them along.
    """
    model.beside = {DATA_FILE: as_json(asdict(card)), CARD_FILE: told}
    with whole_folder(folder) as draft:
        model.save_pretrained(draft)


def load_checkpoint(folder: Path) -> tuple[LabModel, DataCard]:
    """The model, in evaluation mode, and its card. Data that lie in the folder are named by their path there.

    Raises FileNotFoundError: when the folder, or one of its files, is not there; ValueError: when a file is cut off,
    does not fit the model, or holds weights that are not finite.
    """
    if not folder.is_dir():
        raise FileNotFoundError(f"checkpoint: got {folder}, which is no folder; expected {EXPECTED}")
    for name in ("config.json", "model.safetensors", DATA_FILE):
        if not (folder / name).is_file():
            raise FileNotFoundError(f"checkpoint: got {folder}, which holds no {name}; expected {EXPECTED}")
    try:
        card = DataCard(**json.loads((folder / DATA_FILE).read_bytes()))
        size = card.vocabulary.size
        model, info = LabModel.from_pretrained(folder, output_loading_info=True)  # pyright: ignore[reportGeneralTypeIssues]
    except BROKEN as error:
        raise _refusal(folder, f"is cut off or broken ({reason_of(error)})") from error
    absent = sorted(info["missing_keys"]) + sorted(info["unexpected_keys"])
    if absent:
        raise _refusal(folder, f"has weights that do not fit its config.json (see {absent[0]})")
    if size != model.config.vocab_size:
        raise _refusal(folder, f"has {size} tokens in {DATA_FILE} and {model.config.vocab_size} in config.json")
    for name, weight in model.state_dict().items():
        if not weight.isfinite().all():
            raise _refusal(folder, f"has weights that are not finite (see {name})")
    there = [folder / name for name in (DATA_FILE, CARD_FILE) if (folder / name).is_file()]
    model.beside = {path.name: path.read_text(encoding="utf-8") for path in there}
    if (folder / card.data).is_file():
        card = replace(card, data=str(folder / card.data))
    return model.eval(), card


def _refusal(folder: Path, came: str) -> ValueError:
    return ValueError(f"checkpoint: got {folder}, which {came}; expected {EXPECTED}; train it anew")
