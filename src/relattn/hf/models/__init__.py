"""One file for each family of models: its modules on relattn, subclasses that keep every weight under its name.

A file is loaded when a model of its family is met, so that a transformers that lacks one family serves the others.
"""

from __future__ import annotations

import functools
import importlib

from torch import nn

from relattn.hf.replacement import Replacement

FILES = {
    "bloom": "alibi",
    "deberta": "deberta",
    "deberta_v2": "deberta",
    "mpt": "alibi",
    "mt5": "t5",
    "seamless_m4t": "conformer",
    "seamless_m4t_v2": "conformer",
    "t5": "t5",
    "umt5": "t5",
    "vits": "vits",
    "wav2vec2_bert": "conformer",
    "wav2vec2_conformer": "conformer",
}
"""By the package in transformers.models: the file here that has its replacements."""


def package(kind: type[nn.Module]) -> str:
    """transformers.models.PACKAGE.modeling_...: the package that defines a class; "" for a class from elsewhere."""
    parts = kind.__module__.split(".")
    return parts[2] if parts[:2] == ["transformers", "models"] and len(parts) > 2 else ""


def replacement_of(kind: type[nn.Module]) -> type[Replacement] | None:
    """What takes the place of a module's class; None where nothing does.

    Raises ImportError: when this version of transformers lacks a class that the family's file replaces.
    """
    file = FILES.get(package(kind))
    return None if file is None else replacements(file).get(kind)


@functools.cache
def replacements(file: str) -> dict[type[nn.Module], type[Replacement]]:
    """The modules of transformers that a file replaces, and what takes their place."""
    return importlib.import_module(f"relattn.hf.models.{file}").REPLACEMENTS
