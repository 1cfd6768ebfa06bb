"""What a comparison is to do: checked on the way in, kept in `settings.json` so that it can be gone on with."""

from __future__ import annotations

import json
import sys
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any, ClassVar

import torch

from relattn import catalogue
from relattn.cli.files import check_name
from relattn_lab.checks import check_choice, check_flag, check_size
from relattn_lab.config import LabConfig
from relattn_lab.encodings import ENCODINGS, build_encoding, check_data, lab_options
from relattn_lab.support.files import write_json
from relattn_lab.voices.sources import in_four_voices

FILE = "settings.json"
MOST = 2**31 - 1
"""The largest number of steps, windows or features: their products are counted in 64 bits."""
MOST_MINUTES = 1e6
"""Two years."""


@dataclass(frozen=True)
class Settings:
    """The choices of a comparison; field names are those of the options of `relattn-lab compare`.

    Either `minutes`, shared over all encodings and seeds, evaluation included (reading the data and fitting the n-gram
    come before), or `steps` of every run. `length` is in tokens, in four-part music four to a 16th note; `batch` in
    windows of that length, over all processes. `context_parallel` processes split every window among them. `skip_bad`:
    go on without those MIDI files of a folder that cannot be used.

    Raises ValueError: for a choice that cannot be carried out, naming the field.
    """

    KNOWN: ClassVar[tuple[str, ...]] = ENCODINGS

    data: str = "chorales"
    encodings: tuple[str, ...] = ("relative-heads", "rope", "sinusoid")
    seeds: tuple[int, ...] = (0,)
    minutes: float | None = 5.0
    steps: int | None = None
    length: int = 256
    width: int = 96
    depth: int = 3
    heads: int = 4
    batch: int = 4
    learning_rate: float = 1e-2
    dropout: float = 0.0
    context_parallel: int = 1
    skip_bad: bool = False

    def __post_init__(self) -> None:
        if not isinstance(self.data, str):
            raise ValueError(f"data: got {self.data!r}; expected a name or a path")
        check_name("data", self.data)
        check_flag("skip_bad", self.skip_bad)
        if self.skip_bad and (in_four_voices(self.data) or Path(self.data).is_file()):
            raise ValueError(
                f"skip_bad: got it for {self.data}, which is no folder; expected a folder of MIDI files; leave it out"
            )
        for name in self.encodings:
            check_choice("encodings", name, self.KNOWN)
            check_data(name, self.data)
        for seed in self.seeds:
            if isinstance(seed, bool) or not isinstance(seed, int) or not 0 <= seed < 2**32:
                raise ValueError(f"seeds: got {seed!r}; expected whole numbers from 0 up to 2**32 - 1")
        _check_distinct("encodings", self.encodings)
        _check_distinct("seeds", self.seeds)
        if (self.minutes is None) == (self.steps is None):
            raise ValueError(f"minutes, steps: got {self.minutes} and {self.steps}; expected one of the two")
        for name, most in (("minutes", MOST_MINUTES), ("learning_rate", sys.float_info.max)):
            value = getattr(self, name)
            if value is not None and not _is_within(value, most):
                raise ValueError(f"{name}: got {value!r}; expected a number above 0, at most {most:g}")
        for name in ("steps", "length", "width", "depth", "heads", "batch", "context_parallel"):
            number = getattr(self, name)
            if number is not None:
                check_size(name, number)
                if number > MOST:
                    raise ValueError(f"{name}: got {number}; expected at most 2**31 - 1")
        if self.length % 4 and in_four_voices(self.data):
            raise ValueError(
                f"length: got {self.length} for {self.data}; expected a multiple of 4, whole steps of its four voices"
            )
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
        layer = catalogue.Layer(self.heads, self.width // self.heads, self.length, causal=True)
        try:
            with torch.device("meta"):  # whose tensors take no memory, however large they are
                build_encoding(encoding, layer, lab_options(encoding, self.length))
        except ValueError as error:
            raise ValueError(
                f"width, heads: got {self.width} and {self.heads}; expected what suits the encoding {encoding!r} "
                f"({error})"
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
    def load(cls, out: Path, given: dict[str, Any], kind: type[Settings] = Settings) -> Plan:
        """Read `settings.json` of `out`; `given` are settings that the caller named anew and that must agree with it.

        kind: the class of the settings.

        Raises FileNotFoundError: when there is nothing to go on with; ValueError: when the file is damaged, or a given
        setting differs, naming it.
        """
        path = out / FILE
        if not path.is_file():
            raise FileNotFoundError(
                f"resume: got {out}, which holds no {FILE}; expected the folder of a comparison; leave out --resume to "
                "begin one"
            )
        try:
            plan = cls._read(json.loads(path.read_bytes()), kind)
        except (ValueError, AttributeError, KeyError, TypeError, RecursionError) as error:
            raise ValueError(
                f"resume: got {path}, which is damaged ({type(error).__name__}: {error}); expected what "
                "`relattn-lab compare` wrote; start anew in another --out"
            ) from error
        for field in fields(kind):
            before = getattr(plan.settings, field.name)
            if field.name in given and given[field.name] != before:
                raise ValueError(
                    f"{field.name}: got {_words(given[field.name])}; expected {_words(before)}, as the comparison in "
                    f"{out} has it; leave the option out to go on with it, or choose another --out"
                )
        return plan

    @classmethod
    def _read(cls, values: dict[str, Any], kind: type[Settings]) -> Plan:
        fixed = values.pop("fixed")
        steps, fingerprint = fixed["steps"], fixed["data"]
        check_size("steps", steps)
        if not isinstance(fingerprint, str):
            raise ValueError(f"data: got {fingerprint!r}; expected a fingerprint")
        settings = kind.from_dict(values)
        if settings.steps not in (None, steps):
            raise ValueError(f"steps: got {settings.steps} and {steps}; expected the same twice")
        return cls(settings, steps, fingerprint)


def _is_within(value: object, most: float) -> bool:
    """0 < value <= most."""
    return isinstance(value, int | float) and not isinstance(value, bool) and 0 < value <= most


def _words(value: Any) -> str:
    return ",".join(map(str, value)) if isinstance(value, tuple) else str(value)


def _check_distinct(name: str, values: tuple) -> None:
    if not values:
        raise ValueError(f"{name}: got none; expected at least one")
    if len(set(values)) < len(values):
        raise ValueError(f"{name}: got {_words(values)}; expected each once")
