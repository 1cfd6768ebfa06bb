"""Whether a replacement fits the original as the installed version of transformers has it."""

from __future__ import annotations

import functools
import inspect

from torch import nn

from relattn.hf.installed import FIRST, LAST, VERSION
from relattn.hf.models import SINCE, package
from relattn.hf.names import parameters
from relattn.hf.replacement import Replacement, original, overridden


def mismatch(replacement: type[Replacement], module: nn.Module) -> str | None:
    """Why the replacement does not fit the module's class; None where it does."""
    theirs = original(replacement)
    missing = next((need for need in replacement.needs if not hasattr(module, need)), None)
    why = _differing(replacement) if missing is None else f"{theirs.__name__} has no {missing}"
    return None if why is None else reason_of_a_mismatch(theirs, why)


def reason_of_a_mismatch(kind: type[nn.Module], why: str) -> str:
    """The reason for a family that does not fit, with the versions that it does fit."""
    family = package(kind)
    return (
        f"transformers {VERSION} lacks what relattn needs of {family}: {why}; relattn was run with "
        f"{SINCE.get(family, FIRST)} to {LAST}"
    )


@functools.cache  # a model has many modules of one class
def _differing(replacement: type[Replacement]) -> str | None:
    """The first method that the original's callers use in another form, and its argument; None where all agree."""
    theirs = original(replacement)
    reasons = ((method, _argument(replacement, theirs, method)) for method in overridden(replacement))
    return next((f"{theirs.__name__}.{method} {why}" for method, why in reasons if why is not None), None)


def _argument(kind: type, theirs: type, method: str) -> str | None:
    """The argument for which the method of `kind` cannot be called like that of `theirs`, or would not use it.

    The names must be the same. A name that only ours has needs a default. **kwargs may take only arguments that the
    original does not name either. *args hand everything on.
    """
    one, other = (parameters(getattr(each, method)) for each in (kind, theirs))
    if any(p.kind is p.VAR_POSITIONAL for p in one.values()):
        return None
    named, called = ({name: p for name, p in each.items() if p.kind in _BY_NAME} for each in (one, other))
    unknown = next((p.name for name, p in called.items() if name not in named), None)
    if unknown is not None:
        return f"takes {unknown!r}, which relattn does not know"
    needed = next((name for name, p in named.items() if name not in called and p.default is p.empty), None)
    if needed is not None:
        return f"takes no {needed!r}"
    return "takes any keywords" if _takes_any(other) and not _takes_any(one) else None


_BY_NAME = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)


def _takes_any(each: dict[str, inspect.Parameter]) -> bool:
    return any(p.kind is p.VAR_KEYWORD for p in each.values())
