"""What a comparison is to do: checked on the way in, kept in `settings.json` so that it can be gone on with."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

from relattn.lab.config import LabConfig
from relattn.lab.encodings import Shape, build_encoding, named_encoding
from relattn.lab.files import write_json

FILE = "settings.json"


@dataclass(frozen=True)
class Settings:
    """The choices of a comparison; field names are those of the options of `relattn compare`.

    Either `minutes`, shared over all encodings and seeds, evaluation included (reading the data comes before), or
    `steps` of every run. `length` is in tokens, in four-part music four to a 16th note; `batch` in windows of that
    length.

    Raises ValueError for a choice that cannot be carried out, naming the field.
    """

    data: str = "chorales"
    encodings: tuple[str, ...] = ("relative", "rope", "sinusoid")
    seeds: tuple[int, ...] = (0,)
    minutes: float | None = 5.0
    steps: int | None = None
    length: int = 256
    width: int = 96
    depth: int = 3
    heads: int = 4
    batch: int = 4
    learning_rate: float = 6e-3
    dropout: float = 0.0

    def __post_init__(self) -> None:
        for name in self.encodings:
            named_encoding(name)
        _check_distinct("encodings", self.encodings)
        _check_distinct("seeds", self.seeds)
        for seed in self.seeds:
            if not 0 <= seed < 2**32:
                raise ValueError(f"seeds: got {seed}, expected numbers from 0 up to 2**32 - 1")
        if (self.minutes is None) == (self.steps is None):
            raise ValueError(f"minutes, steps: got {self.minutes} and {self.steps}, expected one of the two")
        if self.minutes is not None and not 0 < self.minutes < float("inf"):
            raise ValueError(f"minutes: got {self.minutes}, expected a positive number")
        for name in ("steps", "batch"):
            number = getattr(self, name)
            if number is not None and number < 1:
                raise ValueError(f"{name}: got {number}, expected at least 1")
        if self.length < 4 or self.length % 4:
            raise ValueError(
                f"length: got {self.length}, expected a positive multiple of 4 (whole steps of four voices)"
            )
        if not 0 < self.learning_rate < float("inf"):
            raise ValueError(f"learning_rate: got {self.learning_rate}, expected a positive number")
        for name in self.encodings:
            self.model_config(vocab_size=1, encoding=name)
            self._check_buildable(name)

    def model_config(self, vocab_size: int, encoding: str) -> LabConfig:
        """The configuration of this comparison's model under one encoding."""
        return LabConfig(
            vocab_size=vocab_size,
            width=self.width,
            depth=self.depth,
            heads=self.heads,
            encoding=encoding,
            length=self.length,
            dropout=self.dropout,
        )

    def _check_buildable(self, encoding: str) -> None:
        try:
            build_encoding(encoding, Shape(self.heads, self.width // self.heads, self.length), {})
        except ValueError as error:
            raise ValueError(
                f"width, heads: got {self.width} and {self.heads}, which do not suit the encoding {encoding!r}: {error}"
            ) from error

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> Settings:
        """Settings by name, as a user or `settings.json` gives them; `steps` takes the place of the default minutes."""
        values = dict(values)
        for name in ("encodings", "seeds"):
            if name in values:
                values[name] = tuple(values[name])
        if "steps" in values:
            values.setdefault("minutes", None)
        return cls(**values)


@dataclass(frozen=True)
class Plan:
    """A comparison as fixed before its first run: settings, the steps of every run, and the data's fingerprint."""

    settings: Settings
    steps: int
    data_fingerprint: str

    def save(self, out: Path) -> None:
        """Write `settings.json` into `out`, whole or not at all."""
        write_json(out / FILE, {**asdict(self.settings), "fixed": {"steps": self.steps, "data": self.data_fingerprint}})

    @classmethod
    def load(cls, out: Path, given: dict[str, Any]) -> Plan:
        """Read `settings.json` of `out`; `given` are settings that the caller named anew and that must agree with it.

        Raises:
            FileNotFoundError: when there is nothing to go on with.
            ValueError: when the file is broken, or a given setting differs, naming it.
        """
        path = out / FILE
        if not path.is_file():
            raise FileNotFoundError(
                f"resume: {out} holds no {FILE}, so there is nothing to go on with; leave out --resume"
            )
        try:
            values = json.loads(path.read_text())
            fixed = values.pop("fixed")
            plan = cls(Settings.from_dict(values), fixed["steps"], fixed["data"])
        except (json.JSONDecodeError, AttributeError, KeyError, TypeError) as error:
            raise ValueError(f"resume: {path} is broken ({error!r}); start anew in another --out") from error
        for field in fields(Settings):
            before = getattr(plan.settings, field.name)
            if field.name in given and given[field.name] != before:
                raise ValueError(
                    f"{field.name}: got {_words(given[field.name])}, but the comparison in {out} has {_words(before)}; "
                    "leave the option out to go on with it, or choose another --out"
                )
        return plan


def _words(value: Any) -> str:
    return ",".join(map(str, value)) if isinstance(value, tuple) else str(value)


def _check_distinct(name: str, values: tuple) -> None:
    if not values:
        raise ValueError(f"{name}: got none, expected at least one")
    if len(set(values)) < len(values):
        raise ValueError(f"{name}: got {_words(values)}, expected each once")
