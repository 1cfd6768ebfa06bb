"""Small models of every architecture that `relattn.hf.patch` changes: one file for each family, each with its CASES."""

import importlib
import pkgutil
from typing import Any

from torch import nn

from tests.peers.cases.case import LENGTH, Case, drawn

CASES: dict[str, Case] = {
    name: case
    for found in sorted(pkgutil.iter_modules(__path__), key=lambda found: found.name)
    if found.name != "case"
    for name, case in importlib.import_module(f"{__name__}.{found.name}").CASES.items()
}
"""By architecture; names after it say which of its settings."""


def made(name: str, length: int = LENGTH, **config: Any) -> nn.Module:
    """The model, its parameters drawn anew; config: changed settings."""
    model = drawn(CASES[name].make(length))
    for setting, value in config.items():
        setattr(model.config, setting, value)
    return model
