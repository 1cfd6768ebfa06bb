"""A trained model in a folder: Hugging Face's files, and what its tokens mean."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from safetensors import SafetensorError

from relattn.lab.files import whole_folder, write_json
from relattn.lab.model import LabModel
from relattn.lab.music.events import Events
from relattn.lab.music.tokens import Vocabulary
from relattn.lab.text import Bytes

DATA_FILE = "data.json"
VOCABULARIES = {"voices": Vocabulary, "text": Bytes, "midi": Events}
"""By the kind of data."""


@dataclass(frozen=True)
class DataCard:
    """What a checkpoint knows about its data: a name or a path, their kind, and what the tokens stand for.

    kind: a key of `VOCABULARIES`; tokens: the fields of the vocabulary, whole numbers. Raises TypeError for values of
    another type, ValueError for another kind.
    """

    data: str
    kind: str
    tokens: dict[str, int]

    def __post_init__(self) -> None:
        if type(self.data) is not str or any(type(number) is not int for number in self.tokens.values()):
            raise TypeError(f"expected a text and whole numbers, got {self.data!r} and {self.tokens!r}")
        if self.kind not in VOCABULARIES:
            raise ValueError(f"kind: expected one of {', '.join(VOCABULARIES)}, got {self.kind!r}")

    @property
    def vocabulary(self) -> Any:
        """The tokens' meaning."""
        return VOCABULARIES[self.kind](**self.tokens)


def save_checkpoint(folder: Path, model: LabModel, card: DataCard) -> None:
    """Write `config.json`, `model.safetensors` and `data.json`; `folder` appears only once it is whole."""
    with whole_folder(folder) as draft:
        model.save_pretrained(draft)
        write_json(draft / DATA_FILE, asdict(card))


def load_checkpoint(folder: Path) -> tuple[LabModel, DataCard]:
    """The model, in evaluation mode, and its card.

    Raises:
        FileNotFoundError: when the folder, or one of its files, is not there.
        ValueError: when a file is cut off or does not fit the model.
    """
    if not folder.is_dir():
        raise FileNotFoundError(f"checkpoint: {folder} is not a folder; expected one that `relattn compare` wrote")
    for name in ("config.json", "model.safetensors", DATA_FILE):
        if not (folder / name).is_file():
            raise FileNotFoundError(
                f"checkpoint: {folder} holds no {name}; expected a folder `model` that `relattn compare` wrote"
            )
    try:
        card = DataCard(**json.loads((folder / DATA_FILE).read_text()))
        size = card.vocabulary.size
        model, info = LabModel.from_pretrained(folder, output_loading_info=True)  # pyright: ignore[reportGeneralTypeIssues]
    except (SafetensorError, OSError, ValueError, TypeError, AttributeError, RuntimeError) as error:
        raise ValueError(f"checkpoint: {folder} is cut off or broken ({_first_line(error)}); train it anew") from error
    absent = sorted(info["missing_keys"]) + sorted(info["unexpected_keys"])
    if absent:
        raise ValueError(
            f"checkpoint: the weights in {folder} do not fit its config.json (see {absent[0]}); train it anew"
        )
    if size != model.config.vocab_size:
        raise ValueError(
            f"checkpoint: {folder} is inconsistent, {DATA_FILE} has {size} tokens and config.json "
            f"{model.config.vocab_size}; train it anew"
        )
    return model.eval(), card


def _first_line(error: Exception) -> str:
    return str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
