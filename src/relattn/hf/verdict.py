"""What can be done with a module of a loaded model: changed, changed with its bias remaining, or left; and why."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from dataclasses import dataclass
from types import FunctionType
from typing import Any

from torch import nn
from transformers import PreTrainedModel
from transformers import __version__ as version

from relattn.hf.interface import NAME
from relattn.hf.models import FILES, package, replacement_of
from relattn.hf.replacement import Replacement, original
from relattn.hf.report import Kind
from relattn.hf.uncovered import LEFT, NO_BIAS, REMAINS, relative

Modules = dict[str, nn.Module]
"""The modules of a model by their names."""


@dataclass(frozen=True)
class Verdict:
    """What happens to a module, how or why, and what takes its place (None: it keeps its class)."""

    kind: Kind
    said: str
    replacement: type[Replacement] | None = None

    @property
    def by_name(self) -> bool:
        """Whether the masks of the module are made by the name of its attention."""
        return self.kind != "left" and (self.replacement is None or self.replacement.by_name)


def verdict(name: str, modules: Modules) -> Verdict | None:
    """What can be done with the module of this name; None for what neither attends nor has a replacement."""
    module = modules[name]
    kind = type(module)
    try:
        replacement = replacement_of(kind)
    except ImportError as error:
        return Verdict("left", f"{_lacks(kind)}: {error}") if _attends(module) else None
    if replacement is not None:
        reason = _unlike(replacement, module) or replacement.cannot(module) or _cannot_here(replacement, name, modules)
        said = f"{kind.__name__} -> {replacement.__name__}"
        return Verdict("left", reason) if reason else Verdict("changed", said, replacement)
    if _has_a_replaced_base(kind):
        return Verdict("left", f"{kind.__name__} is a subclass, and may compute something else than its base")
    return _by_name(name, modules) if _attends(module) else None


def around(name: str, modules: Modules, wanted: Callable[[nn.Module], bool]) -> Any:
    """The innermost of a module and those around it that is `wanted`; None where none is."""
    while not wanted(modules[name]):
        if not name:
            return None
        name = name.rpartition(".")[0]
    return modules[name]


def _by_name(name: str, modules: Modules) -> Verdict:
    """Of an attention module without a replacement: whether the name "relattn" serves it."""
    kind = type(modules[name])
    family = package(kind)
    if family in LEFT:
        return Verdict("left", f"{kind.__name__}: {LEFT[family]}")
    owner = around(name, modules, lambda outer: isinstance(outer, PreTrainedModel))
    if owner is None or not owner._can_set_attn_implementation() or not _asks_the_interface(kind):
        return Verdict("left", f"{kind.__name__} takes no attn_implementation, and relattn has no replacement")
    said = f"{kind.__name__} with attn_implementation={NAME!r}"
    if family in REMAINS:
        return Verdict("remains", f"{said}; {REMAINS[family]}")
    if family not in FILES and family not in NO_BIAS and relative(_code_beside(kind)):
        return Verdict("left", f"{kind.__name__} stands beside relative positions in code that relattn does not know")
    return Verdict("changed", said)


def _cannot_here(replacement: type[Replacement], name: str, modules: Modules) -> str | None:
    """Why the replacement would not run, or not be understood, where this module stands; None where it would."""
    kind, stack = type(modules[name]).__name__, replacement.stack
    if "forward" in vars(modules[name]):
        return f"a hook has taken the place of {kind}.forward; patch the model before, or remove the hook"
    if stack is not None and around(name, modules, lambda outer: isinstance(outer, stack)) is None:
        return f"{kind} shares its bias with the other layers of a {stack.__name__}; patch that, or the model"
    return None


def _unlike(replacement: type[Replacement], module: nn.Module) -> str | None:
    """Why the replacement does not fit the original as this version of transformers has it; None where it does."""
    theirs = original(replacement)
    missing = next((need for need in replacement.needs if not hasattr(module, need)), None)
    if missing is not None:
        return f"{_lacks(theirs)}: {theirs.__name__} has no {missing}"
    differing = next((method for method in _overridden(replacement) if not _takes(replacement, theirs, method)), None)
    return differing and f"{_lacks(theirs)}: {theirs.__name__}.{differing} takes other arguments"


def _lacks(kind: type[nn.Module]) -> str:
    return f"transformers {version} lacks what relattn needs of {package(kind)}"


def _overridden(replacement: type[Replacement]) -> list[str]:
    """The methods of the original that the replacement has in another form."""
    theirs = original(replacement)
    ours = (base for base in replacement.__mro__ if issubclass(base, Replacement) and base is not Replacement)
    methods = {method for base in ours for method, found in vars(base).items() if isinstance(found, FunctionType)}
    return sorted(method for method in methods if hasattr(theirs, method))


def _takes(ours: type, theirs: type, method: str) -> bool:
    """Whether the method of `ours` can be called as that of `theirs`: the same names in the same places."""
    one, other = ([*inspect.signature(getattr(kind, method)).parameters.values()] for kind in (ours, theirs))
    loose = {p.kind for p in one if p.kind in (p.VAR_POSITIONAL, p.VAR_KEYWORD)}
    if inspect.Parameter.VAR_POSITIONAL in loose:
        return True
    named, expected = ([p for p in each if p.kind is p.POSITIONAL_OR_KEYWORD] for each in (one, other))
    same = all(a.name == b.name for a, b in zip(named, expected, strict=False))
    known = len(expected) <= len(named) or inspect.Parameter.VAR_KEYWORD in loose
    return same and known and all(p.default is not p.empty for p in named[len(expected) :])


def _has_a_replaced_base(kind: type[nn.Module]) -> bool:
    return any(issubclass(base, nn.Module) and replacement_of(base) is not None for base in kind.__mro__[1:])


def _attends(module: nn.Module) -> bool:
    """Whether it is an attention module itself, rather than one that wraps another."""
    return _is_attention(module) and sum(map(_is_attention, module.modules())) == 1


def _is_attention(module: nn.Module) -> bool:
    """By its name or its base; what it projects with may be wrapped, by adapters for instance."""
    kind = type(module)
    named = "Attention" in kind.__name__ and not kind.__module__.startswith("relattn.")
    return (named or _has_a_replaced_base(kind)) and any(True for _ in module.parameters())


@functools.cache
def _asks_the_interface(kind: type[nn.Module]) -> bool:
    """Whether this class calls the attention that its configuration names; beside it, another class may."""
    own = kind.__mro__[: kind.__mro__.index(nn.Module)]
    return any("ALL_ATTENTION_FUNCTIONS" in _source(one) for one in own)


@functools.cache
def _code_beside(kind: type[nn.Module]) -> str:
    """The file that defines a class."""
    module = inspect.getmodule(kind)
    return "" if module is None else _source(module)


def _source(thing: Any) -> str:
    """Its code; none where it was typed into an interpreter."""
    try:
        return inspect.getsource(thing)
    except (OSError, TypeError):
        return ""
