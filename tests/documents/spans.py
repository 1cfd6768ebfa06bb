"""A code span of a page: where it is a command, an option, a file or a dotted name of relattn, it is a true one."""

from __future__ import annotations

import importlib
import re
from functools import reduce
from typing import Any

from tests.documents.commands import OPTIONS, is_command, refusal
from tests.documents.page import ROOT

FOLDERS = ("src", "lab", "tests", "docs", "examples", "measure", "ptxemu", "vectors")
SCRIPTS = "".join(path.read_text() for folder in ("examples", "measure") for path in (ROOT / folder).glob("*.py"))


def complaint(span: str) -> str | None:
    """What is untrue of a span; None where all is well, or where it is none of these."""
    if is_command(span):
        return refusal(span)
    if span.startswith("--"):
        option = span.split()[0]
        return None if option in OPTIONS or f'"{option}"' in SCRIPTS else "no command and no script has this option"
    if name := re.match(r"relattn((?:\.[a-zA-Z_]\w*)+)", span):
        return missing(name[1].split(".")[1:])
    if re.fullmatch(rf"(?:\.\./)?({'|'.join(FOLDERS)})/[\w./-]*", span):
        return None if (ROOT / span.removeprefix("../")).exists() else "no such file"
    return None


def missing(names: list[str]) -> str | None:
    """Which of the names one after the other, from relattn on, does not exist."""
    try:
        reduce(inside, names, importlib.import_module("relattn"))
    except (AttributeError, ModuleNotFoundError) as error:
        return str(error)
    return None


def inside(owner: Any, name: str) -> Any:
    """A module's part, which may be a module that is not imported yet."""
    try:
        return getattr(owner, name)
    except AttributeError:
        if not hasattr(owner, "__path__"):
            raise
        return importlib.import_module(f"{owner.__name__}.{name}")
