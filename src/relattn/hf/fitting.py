"""Whether a replacement fits the original as the installed version of transformers has it."""

from __future__ import annotations

import functools
import inspect
from types import FunctionType

from torch import nn
from transformers import __version__ as version
from transformers import masking_utils

from relattn.hf.models import package
from relattn.hf.replacement import Replacement, original

MASKS_HAVE_LENGTHS = "q_length" in inspect.signature(masking_utils.sdpa_mask).parameters
"""Whether transformers passes the number of queries to masks; before 5.4 it passed a tensor of their places."""


def unlike(replacement: type[Replacement], module: nn.Module) -> str | None:
    """Why the replacement does not fit the module's class; None where it does."""
    theirs = original(replacement)
    missing = next((need for need in replacement.needs if not hasattr(module, need)), None)
    if missing is not None:
        return f"{lacks(theirs)}: {theirs.__name__} has no {missing}"
    differing = _differing(replacement)
    if differing is not None:
        return f"{lacks(theirs)}: {theirs.__name__}.{differing} takes other arguments"
    return without_masks() if replacement.by_name else None


def without_masks() -> str | None:
    """Why masks cannot be requested by name; None where they can."""
    return None if MASKS_HAVE_LENGTHS else f"transformers {version} asks for masks in another form than 5.4 and later"


def lacks(kind: type[nn.Module]) -> str:
    """The beginning of a reason."""
    return f"transformers {version} lacks what relattn needs of {package(kind)}"


@functools.cache  # a model has many modules of one class
def _differing(replacement: type[Replacement]) -> str | None:
    """The first method that the original's callers use in another form; None where all agree."""
    theirs = original(replacement)
    return next((method for method in _overridden(replacement) if not _takes(replacement, theirs, method)), None)


def _overridden(replacement: type[Replacement]) -> list[str]:
    """The methods of the original that the replacement has in another form."""
    theirs = original(replacement)
    ours = (base for base in replacement.__mro__ if issubclass(base, Replacement) and base is not Replacement)
    methods = {method for base in ours for method, found in vars(base).items() if isinstance(found, FunctionType)}
    return sorted(method for method in methods if hasattr(theirs, method))


def _takes(ours: type, theirs: type, method: str) -> bool:
    """Whether the method of `ours` can be called like that of `theirs`, and uses every argument of a call.

    The names must be the same, in the same places. A name that only ours has needs a default. **kwargs may take only
    arguments that the original does not name either. *args hand everything on.
    """
    one, other = ([*inspect.signature(getattr(kind, method)).parameters.values()] for kind in (ours, theirs))
    if any(p.kind is p.VAR_POSITIONAL for p in one):
        return True
    places, expected = ([p.name for p in each if p.kind is p.POSITIONAL_OR_KEYWORD] for each in (one, other))
    named, called = ({p.name: p for p in each if p.kind in _BY_NAME} for each in (one, other))
    optional = all(p.default is not p.empty for name, p in named.items() if name not in called)
    loose = not _takes_any(other) or _takes_any(one)
    return places[: len(expected)] == expected and called.keys() <= named.keys() and optional and loose


_BY_NAME = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)


def _takes_any(parameters: list[inspect.Parameter]) -> bool:
    return any(p.kind is p.VAR_KEYWORD for p in parameters)
