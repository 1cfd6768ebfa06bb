"""The names and places of arguments, which transformers changes: the replacements keep one signature."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Any

from transformers.masking_utils import create_causal_mask

from relattn.hf.installed import FIRST, LAST, VERSION

RENAMED = {"cache": "past_key_values"}
"""The newer names of arguments (5.24), and those that the replacements keep."""


def canonical_name(name: str) -> str:
    """The replacements' name of an argument."""
    return RENAMED.get(name, name)


def _cache() -> str:
    """Raises ImportError: when the installed version has another name for it."""
    for name in inspect.signature(create_causal_mask).parameters:
        if canonical_name(name) == "past_key_values":
            return name
    raise ImportError(
        f"transformers: version {VERSION} is installed, whose create_causal_mask has no argument 'past_key_values' or "
        f"'cache'; relattn.hf was run with {FIRST} to {LAST}; install 'transformers>={FIRST},<={LAST}.*'",
        name="transformers",
    )


CACHE = _cache()
"""What the modules of the installed version call their cache."""


def parameters(function: Callable[..., Any]) -> dict[str, inspect.Parameter]:
    """The parameters of a function, by the replacements' names."""
    return {canonical_name(name): each for name, each in inspect.signature(function).parameters.items()}


def accepting_original_names(method: Callable[..., Any], theirs: Callable[..., Any]) -> Callable[..., Any]:
    """The method, called like the original's: by its names, or in its order. Itself where it has the same ones."""
    mine, names = (_places(each) for each in (method, theirs))
    if mine[: len(names)] == names or any(p.kind is p.VAR_POSITIONAL for p in parameters(method).values()):
        return method
    renamed = {name: canonical_name(name) for name in names if canonical_name(name) in mine}

    @functools.wraps(method)
    def called(self: Any, *args: Any, **kwargs: Any) -> Any:
        if len(args) >= len(names):
            raise TypeError(
                f"{theirs.__qualname__}() takes {len(names)} positional arguments ({', '.join(names)}) but "
                f"{len(args) + 1} were given"
            )
        placed = {renamed.get(name, name): value for name, value in zip(names[1:], args, strict=False)}
        return method(self, **placed, **{renamed.get(name, name): value for name, value in kwargs.items()})

    return called


def _places(function: Callable[..., Any]) -> list[str]:
    """The names of the arguments that may be given by their places."""
    each = inspect.signature(function).parameters.values()
    return [p.name for p in each if p.kind is p.POSITIONAL_OR_KEYWORD]
