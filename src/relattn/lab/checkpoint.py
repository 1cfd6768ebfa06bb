"""A trained model in a folder: Hugging Face's files, and what its tokens mean."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path

from safetensors import SafetensorError

from relattn.lab.files import whole_folder, write_json
from relattn.lab.model import LabModel
from relattn.lab.music.tokens import Vocabulary

MUSIC_FILE = "music.json"


@dataclass(frozen=True)
class MusicCard:
    """What a checkpoint knows about music: its data (a name or a path) and the pitches that its tokens stand for.

    Raises TypeError for values of another type.
    """

    data: str
    low: int
    high: int

    def __post_init__(self) -> None:
        if type(self.data) is not str or type(self.low) is not int or type(self.high) is not int:
            raise TypeError(f"expected a text and two whole numbers, got {self.data!r}, {self.low!r}, {self.high!r}")

    @property
    def vocabulary(self) -> Vocabulary:
        """The tokens' meaning."""
        return Vocabulary(self.low, self.high)


def save_checkpoint(folder: Path, model: LabModel, card: MusicCard) -> None:
    """Write `config.json`, `model.safetensors` and `music.json`; `folder` appears only once it is whole."""
    with whole_folder(folder) as draft:
        model.save_pretrained(draft)
        write_json(draft / MUSIC_FILE, asdict(card))


def load_checkpoint(folder: Path) -> tuple[LabModel, MusicCard]:
    """The model, in evaluation mode, and its card.

    Raises:
        FileNotFoundError: when the folder, or one of its files, is not there.
        ValueError: when a file is cut off or does not fit the model.
    """
    if not folder.is_dir():
        raise FileNotFoundError(f"checkpoint: {folder} is not a folder; expected one that `relattn compare` wrote")
    for name in ("config.json", "model.safetensors", MUSIC_FILE):
        if not (folder / name).is_file():
            raise FileNotFoundError(
                f"checkpoint: {folder} holds no {name}; expected a folder `model` that `relattn compare` wrote"
            )
    try:
        card = MusicCard(**json.loads((folder / MUSIC_FILE).read_text()))
        size = card.vocabulary.size
        model, info = LabModel.from_pretrained(folder, output_loading_info=True)  # pyright: ignore[reportGeneralTypeIssues]
    except (SafetensorError, OSError, ValueError, TypeError, RuntimeError) as error:
        raise ValueError(f"checkpoint: {folder} is cut off or broken ({_first_line(error)}); train it anew") from error
    absent = sorted(info["missing_keys"]) + sorted(info["unexpected_keys"])
    if absent:
        raise ValueError(
            f"checkpoint: the weights in {folder} do not fit its config.json (see {absent[0]}); train it anew"
        )
    if size != model.config.vocab_size:
        raise ValueError(
            f"checkpoint: {folder} is inconsistent, {MUSIC_FILE} has {size} tokens and config.json "
            f"{model.config.vocab_size}; train it anew"
        )
    return model.eval(), card


def _first_line(error: Exception) -> str:
    return str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
