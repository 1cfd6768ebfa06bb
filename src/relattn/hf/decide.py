"""What can be done with a module of a loaded model: changed, changed with its bias remaining, or left; and why."""

from __future__ import annotations

import functools
import inspect
import itertools
import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from torch import nn
from transformers import PreTrainedModel

from relattn.hf.fitting import mismatch, reason_of_a_mismatch
from relattn.hf.interface import NAME
from relattn.hf.models import FILES, package, replacement_of, unwrapped
from relattn.hf.replacement import Replacement, keeps_its_forward
from relattn.hf.report import Kind
from relattn.hf.unsupported import LEFT, REMAINS, is_named, reason, relative

WORKS_ON_ITS_MASK = re.compile(
    r"attention_mask(\[| & |\.(shape|masked_fill))|_attn_implementation (in |== \"sdpa\")|merged_attention_mask"
)
"""For example DeepSeek's indexers, which choose keys for every query: they would fail, or choose nothing. T5Gemma 2
joins the masks of text and memory.
"""

MASKS_OF_ITS_OWN = re.compile(r"\b(or|and)_mask_function[=\"]|block_sequence_ids=")
"""Code by which a model asks for a mask beyond causality, windows, chunks and padding, as Gemma 3 for its images."""

Modules = dict[str, nn.Module]
"""The modules of a model by their names."""


@dataclass(frozen=True)
class Decision:
    """What happens to a module, how or why, and its replacement (None: it keeps its class), also if it cannot be used.

    is_mismatched: left because this version of transformers lacks something, so that its whole family is left.
    """

    kind: Kind
    why: str
    replacement: type[Replacement] | None = None
    is_mismatched: bool = False

    @property
    def by_name(self) -> bool:
        """Whether the module's masks depend on the name of its attention."""
        return self.kind != "left" and (self.replacement is None or self.replacement.by_name)

    @property
    def in_a_stack(self) -> bool:
        """Whether it shares values with the other layers of a stack that only replacements understand."""
        return self.replacement is not None and self.replacement.stack is not None


def decide(name: str, modules: Modules) -> Decision | None:
    """What can be done with the module of this name; None for a module that neither attends nor has a replacement."""
    module = modules[name]
    kind = type(module)
    try:
        replacement = replacement_of(kind)
    except ImportError as error:
        return (
            Decision("left", reason_of_a_mismatch(kind, str(error)), is_mismatched=True) if _attends(module) else None
        )
    if replacement is not None:
        lacking = mismatch(replacement, module)
        if lacking is not None:
            return Decision("left", lacking, replacement, is_mismatched=True)
        reason = replacement.cannot(module) or _cannot_here(replacement, name, modules)
        explanation = f"{kind.__name__} -> {replacement.__name__}"
        return Decision("left" if reason else "changed", reason or explanation, replacement)
    base = _of_a_base(kind)
    if base is not None:
        return Decision("left", f"{kind.__name__} is a subclass, and may compute something else than its base", base)
    return _by_name(name, modules) if _attends(module) and not _is_a_part(name, modules) else None


def around(name: str, modules: Modules, matches: Callable[[nn.Module], bool]) -> Any:
    """The innermost `wanted` one of a module and the modules around it; None where none is wanted."""
    while not matches(modules[name]):
        if not name:
            return None
        name = name.rpartition(".")[0]
    return modules[name]


def may_get_masks(name: str, modules: Modules) -> bool:
    """Whether a mask that depends on the name of the attention may reach this module.

    torch's own modules get masks of tokens. A module on the way may take no mask, as SigLIP's pooling heads.
    """
    if _is_torch_s(modules[name]):
        return False
    owner = around(name, modules, lambda outer: isinstance(outer, PreTrainedModel) or _takes_no_mask(outer))
    return owner is None or isinstance(owner, PreTrainedModel)


def _takes_no_mask(module: nn.Module) -> bool:
    if isinstance(module, nn.ModuleList | nn.ModuleDict):
        return False
    parameters = inspect.signature(type(module).forward).parameters.values()
    return not any("mask" in p.name or p.kind is p.VAR_KEYWORD for p in parameters)


def _by_name(name: str, modules: Modules) -> Decision:
    """For an attention module without a replacement: whether the name "relattn" works for it."""
    kind = unwrapped(type(modules[name]))
    family = package(kind)
    why = reason(LEFT, family, kind.__name__)
    if why is not None:
        return Decision("left", f"{kind.__name__}: {why}")
    if not _has_weights(modules[name]):
        holder = around(name, modules, lambda outer: any(True for _ in outer.parameters(recurse=False)))
        wrapper = type(modules[""] if holder is None else holder).__name__
        return Decision(
            "left", f"{kind.__name__} has lost its weights to {wrapper}; patch the model before it is wrapped"
        )
    owner = around(name, modules, lambda outer: isinstance(outer, PreTrainedModel))
    if owner is None or not owner._can_set_attn_implementation() or not _asks_the_interface(kind):
        return Decision("left", f"{kind.__name__} takes no attn_implementation, and relattn has no replacement")
    if _works_on_its_mask(kind):
        return Decision("left", f"{kind.__name__} works on a mask of queries x keys")
    explanation = f"{kind.__name__} with attn_implementation={NAME!r}"
    if MASKS_OF_ITS_OWN.search(_code_beside(kind)):
        explanation += "; where its model asks for a mask of its own form, the pairs are written down"
    why = reason(REMAINS, family, kind.__name__)
    if why is not None:
        return Decision("remains", f"{explanation}; {why}")
    if not is_named(family) and relative(_code_of(kind) if family in FILES else _code_beside(kind)):
        explanation = f"{kind.__name__} is defined in a file with relative positions that relattn does not support"
        return Decision("left", explanation)
    return Decision("changed", explanation)


def _cannot_here(replacement: type[Replacement], name: str, modules: Modules) -> str | None:
    """Why the replacement would not run, or not be understood, in this module's place; None where it would."""
    kind, stack = type(modules[name]).__name__, replacement.stack
    if "forward" in vars(modules[name]) and not keeps_its_forward(modules[name]):
        return f"a hook has taken the place of {kind}.forward; patch the model before, or remove the hook"
    if stack is not None and around(name, modules, lambda outer: isinstance(outer, stack)) is None:
        return f"{kind} shares its bias with the other layers of a {stack.__name__}; patch that, or the model"
    return None


def _of_a_base(kind: type[nn.Module]) -> type[Replacement] | None:
    """The replacement of one of its bases; None where none has one."""
    return _of_bases(kind.__mro__[1:])


def _of_bases(kinds: Iterable[type]) -> type[Replacement] | None:
    """The first replacement of one of these classes; None where none has one."""
    try:
        replacements = (replacement_of(kind) for kind in kinds if issubclass(kind, nn.Module))
        return next((replacement for replacement in replacements if replacement is not None), None)
    except ImportError:  # this version of transformers lacks something of its family
        return None


def _is_a_part(name: str, modules: Modules) -> bool:
    """Whether it is one of torch's own modules that a replaced one holds and calls."""
    holder = modules.get(name.rpartition(".")[0])
    return _is_torch_s(modules[name]) and holder is not None and _of_bases((type(holder),)) is not None


def _is_torch_s(module: nn.Module) -> bool:
    return unwrapped(type(module)).__module__.startswith("torch.")


def _attends(module: nn.Module) -> bool:
    """Whether it is an attention module itself, rather than one that wraps another."""
    return _is_attention(module) and sum(map(_is_attention, module.modules())) == 1


def _is_attention(module: nn.Module) -> bool:
    """By its name or its base; its projections may be wrapped, for example by adapters."""
    kind = type(module)
    named = "Attention" in kind.__name__ and not kind.__module__.startswith("relattn.")
    projects = any(isinstance(part, nn.Linear) for part in module.modules())
    return (named or _of_a_base(kind) is not None) and (projects or _has_weights(module))


def _has_weights(module: nn.Module) -> bool:
    """Whether it has parameters, or what a quantizer made of them: buffers, or a layer whose `weight` is a method."""
    has_own = any(True for _ in itertools.chain(module.parameters(), module.buffers()))
    return has_own or any(hasattr(part, "weight") for part in module.modules())


@functools.cache
def _asks_the_interface(kind: type[nn.Module]) -> bool:
    """Whether this class itself calls the attention that its configuration names, and not another class."""
    return "ALL_ATTENTION_FUNCTIONS" in _code_of(kind)


@functools.cache
def _works_on_its_mask(kind: type[nn.Module]) -> bool:
    """Whether it reads or changes the mask before it calls the attention, or asks for the attention's name."""
    return WORKS_ON_ITS_MASK.search(_code_of(kind)) is not None


def _code_of(kind: type[nn.Module]) -> str:
    """The code of a class and of its bases up to nn.Module."""
    return "\n".join(_source(one) for one in kind.__mro__[: kind.__mro__.index(nn.Module)])


@functools.cache
def _code_beside(kind: type[nn.Module]) -> str:
    """The file that defines a class."""
    module = inspect.getmodule(kind)
    return "" if module is None else _source(module)


def _source(thing: Any) -> str:
    """Its code; empty where it was typed into an interpreter."""
    try:
        return inspect.getsource(thing)
    except (OSError, TypeError):
        return ""
