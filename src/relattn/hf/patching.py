"""patch, unpatch and patched: the attention of a loaded transformers model on relattn, in place."""

from __future__ import annotations

import copy
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

from torch import nn
from transformers import PreTrainedConfig

from relattn.backends.select import check_backend
from relattn.checks.values import kind_of
from relattn.errors import UnsupportedError
from relattn.hf.decide import Decision, Modules, around, decide, may_get_masks
from relattn.hf.interface import NAME
from relattn.hf.models import package
from relattn.hf.replacement import Replacement, change_class, original
from relattn.hf.report import KINDS, Report


def patch(model: nn.Module, backend: str = "auto", *, strict: bool = False) -> Report:
    """The model's own outputs from its own weights, with its attention computed by relattn; in place.

    model: a loaded transformers model, or a module that holds such models.
    backend: as in `relative_attention`.
    strict: every attention module must be changed.

    Modules that add a position bias are switched to a relattn subclass of their own class, with the same weights under
    the same names. Where a model takes an attn_implementation, it becomes "relattn", in the model's own copy of its
    configuration. Other models made from the same object keep theirs. Checkpoints saved before and after are
    interchangeable.

    Raises UnsupportedError: when nothing in the model can be changed, or with strict=True not everything; ValueError:
    when the model is already patched, or when there is no such backend; TypeError: when it is not a module. The model
    is then as it was.
    """
    check_backend(backend)
    _check_module(model)
    modules = dict(model.named_modules())
    if any("relattn_backend" in vars(module) for module in modules.values()):
        raise ValueError(
            "model: is patched already; call relattn.hf.unpatch on it first, for instance to choose another backend"
        )
    decisions = {name: explanation for name in modules if (explanation := decide(name, modules)) is not None}
    decisions = _leave_mismatched_families(decisions, modules)
    report = Report(*({name: v.why for name, v in decisions.items() if v.kind == kind} for kind in KINDS))
    _refuse(model, report, strict)
    _refuse_a_torn_model(decisions, modules)
    named = [name for name, v in decisions.items() if v.by_name]
    for name in (*report.changed, *report.remains):
        change_class(modules[name], decisions[name].replacement or type(modules[name]))  # pyright: ignore[reportArgumentType]
        modules[name].relattn_backend = backend  # pyright: ignore[reportArgumentType]
    if named:
        _own_configs(modules)
    configs = _configs(named, modules)
    model._relattn_configs = [(config, config._attn_implementation) for config in configs]  # pyright: ignore[reportArgumentType]
    for config in configs:
        config._attn_implementation_internal = NAME
    return report


def unpatch(model: nn.Module) -> None:
    """Undo the changes of `patch`.

    model: the module with which `patch` was called.

    The model keeps the copies of its configurations, with later changes in them.

    Raises ValueError: when `patch` was not called with this module; UnsupportedError: when a wrapper has made a class
    of its own of a changed one; TypeError: when it is not a module. The model is then as it was.
    """
    _check_module(model)
    configs: list[tuple[PreTrainedConfig, str | None]] | None = getattr(model, "_relattn_configs", None)
    if configs is None:
        raise ValueError(f"model: relattn.hf.patch was not called with this {type(model).__name__}; nothing to undo")
    _refuse_wrapped_replacements(model)
    for config, implementation in configs:
        config._attn_implementation_internal = implementation
    for module in model.modules():
        for attribute in ("relattn_backend", "relattn_with_weights"):
            vars(module).pop(attribute, None)
        change_class(module, original(type(module)))
    del model._relattn_configs


@contextmanager
def patched(model: nn.Module, backend: str = "auto", *, strict: bool = False) -> Iterator[Report]:
    """`patch` inside, `unpatch` on the way out.

    model, backend, strict: as in `patch`.
    """
    report = patch(model, backend, strict=strict)
    try:
        yield report
    finally:
        unpatch(model)


def _check_module(model: nn.Module) -> None:
    """Raises TypeError: when it is none."""
    if not isinstance(model, nn.Module):
        raise TypeError(f"model: got {kind_of(model)}; expected a transformers model")


def _refuse_wrapped_replacements(model: nn.Module) -> None:
    """Raises UnsupportedError: when a changed module has the class of a wrapper, from which no way leads back."""
    for name, module in model.named_modules():
        kind = type(module)
        if issubclass(kind, Replacement) and not kind.__module__.startswith("relattn."):
            raise UnsupportedError(
                f"model: {name or '(the whole)'} is now of the class {kind.__name__}; take its wrapper off before "
                "relattn.hf.unpatch; nothing was changed"
            )


def _refuse(model: nn.Module, report: Report, strict: bool) -> None:
    """Raises UnsupportedError: when nothing can be changed, or with `strict` when any module cannot."""
    kind, short = type(model).__name__, {**report.remains, **report.left}
    if not report.changed and not report.remains:
        reasons = "; ".join(sorted(set(report.left.values()))) or "it has none"
        raise UnsupportedError(f"model: relattn can change no attention of {kind} ({reasons}); it is as it was")
    if strict and short:
        name, why = next(iter(short.items()))
        raise UnsupportedError(
            f"model: with strict=True every attention of {kind} must be changed, and {len(short)} cannot be, the first "
            f"of them {name} ({why}); it is as it was; with strict=False the report names them all"
        )


def _leave_mismatched_families(decisions: dict[str, Decision], modules: Modules) -> dict[str, Decision]:
    """A family is replaced as a whole or left: its modules hand on values that only the replacements understand."""
    mismatched = {
        package(type(modules[name])): decision for name, decision in decisions.items() if decision.is_mismatched
    }
    return {
        name: mismatched.get(package(type(modules[name])), decision) if decision.replacement is not None else decision
        for name, decision in decisions.items()
    }


def _refuse_a_torn_model(decisions: dict[str, Decision], modules: Modules) -> None:
    """Raises UnsupportedError: when a module that is left shares masks, or values that a stack hands on, with changed
    ones.
    """
    handed_on = {package(type(modules[name])) for name, v in decisions.items() if v.kind == "changed" and v.in_a_stack}
    for name, decision in decisions.items():
        if decision.kind == "left" and decision.in_a_stack and package(type(modules[name])) in handed_on:
            raise UnsupportedError(
                f"model: {name} cannot be changed ({decision.why}) and gets from the other layers of its stack what "
                "only changed ones understand; nothing was changed"
            )
    named = [name for name, v in decisions.items() if v.by_name]
    configs = {id(config) for config in _configs(named, modules)}
    receivers = [name for name, v in decisions.items() if v.kind == "left" and may_get_masks(name, modules)]
    for name in receivers:
        if any(id(config) in configs for config in _configs([name], modules)):
            raise UnsupportedError(
                f"model: {name} cannot be changed ({decisions[name].why}) and takes its masks from where others take "
                "theirs; nothing was changed"
            )
    changed = (v.replacement for v in decisions.values() if v.kind == "changed")
    stacks = tuple({replacement.stack for replacement in changed if replacement and replacement.stack})
    for name, decision in decisions.items():
        if decision.kind == "left" and isinstance(modules[name], stacks):
            raise UnsupportedError(
                f"model: {name or '(the whole)'} cannot be changed ({decision.why}) and hands its layers what changed "
                "ones do not understand; nothing was changed"
            )


def _configs(names: Iterable[str], modules: Modules) -> list[PreTrainedConfig]:
    """The configurations by which masks are made for these modules, each once."""
    holders = (
        around(name, modules, lambda outer: isinstance(getattr(outer, "config", None), PreTrainedConfig))
        for name in names
    )
    return list({id(holder.config): holder.config for holder in holders if holder is not None}.values())


def _own_configs(modules: Modules) -> None:
    """Give the model copies of its configurations. Objects that are shared, also within others, stay shared."""
    copies: dict[int, Any] = {}
    for module in modules.values():
        for name, value in vars(module).items():
            if isinstance(value, PreTrainedConfig):
                vars(module)[name] = copy.deepcopy(value, copies)
