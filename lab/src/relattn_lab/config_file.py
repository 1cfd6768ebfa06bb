"""A comparison's choices as a TOML file: read with `--config`, and written beside the results."""

from __future__ import annotations

import re
import tomllib
from dataclasses import asdict, fields
from pathlib import Path
from typing import Any

import tomli_w

from relattn.cli.files import check_name
from relattn_lab.settings import Settings
from relattn_lab.support.files import write_text

FILE = "config.toml"
TEXT, WHOLE, NUMBER, FLAG = "a text", "a whole number", "a number", "true or false"
TEXTS, WHOLES = "a list of texts", "a list of whole numbers"
_KIND_OF: dict[str, str] = {
    "str": TEXT, "int": WHOLE, "float": NUMBER, "bool": FLAG, "tuple[str, ...]": TEXTS, "tuple[int, ...]": WHOLES,
}  # fmt: skip
OPTIONS = {field.name: _KIND_OF[str(field.type).removesuffix(" | None")] for field in fields(Settings)}
"""The fields of `Settings`, and what each of them is in a file."""


def read_config(path: Path) -> dict[str, Any]:
    """The choices in the file `path`, by the names of `Settings`' fields.

    Raises FileNotFoundError: when there is no such file; ValueError: when it is no TOML, for an option that there is
    not, and for one of another type, naming the line.
    """
    check_name("config", path)
    if not path.is_file():
        raise FileNotFoundError(f"config: got {path}, which is not there; expected a .toml file of options")
    try:
        text = path.read_text(encoding="utf-8")
        given = tomllib.loads(text)
    except ValueError as error:
        raise ValueError(
            f"config: got {path}, which is no TOML ({error}); expected lines such as steps = 100"
        ) from error
    for name, value in given.items():
        where = f"config: {path}, line {_line(text, name)}"
        if name not in OPTIONS:
            raise ValueError(f"{where}: got the option {name!r}; expected some of {', '.join(OPTIONS)}")
        if not _fits(value, OPTIONS[name]):
            raise ValueError(f"{where}: got {name} = {value!r}; expected {OPTIONS[name]}")
    return given


def write_config(out: Path, settings: Settings) -> None:
    """Write `config.toml` into `out`; `read_config` gives the same settings back."""
    values = {name: list(value) if isinstance(value, tuple) else value for name, value in asdict(settings).items()}
    write_text(out / FILE, tomli_w.dumps({name: value for name, value in values.items() if value is not None}))


def _line(text: str, name: str) -> int:
    """The number of the line on which an option, or a table, of this name begins."""
    begins = re.compile(rf"\s*\[*\s*[\"']?{re.escape(name)}\b")
    return next(number for number, line in enumerate(text.splitlines(), 1) if begins.match(line))


def _fits(value: object, kind: str) -> bool:
    if kind in (TEXTS, WHOLES):
        return isinstance(value, list) and all(_fits(one, TEXT if kind == TEXTS else WHOLE) for one in value)
    types = {TEXT: str, WHOLE: int, NUMBER: (int, float), FLAG: bool}[kind]
    return isinstance(value, types) and isinstance(value, bool) == (kind == FLAG)
