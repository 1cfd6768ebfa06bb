"""patch, unpatch and patched: the attention of a loaded transformers model on relattn, in place."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from torch import nn
from transformers import PreTrainedConfig, PreTrainedModel

from relattn.backends.select import check_backend
from relattn.errors import UnsupportedError
from relattn.hf.installed import check_version
from relattn.hf.interface import NAME
from relattn.hf.models import REPLACEMENTS
from relattn.hf.replacement import Replacement

ORIGINALS = {replacement: original for original, replacement in REPLACEMENTS.items()}
"""What stood where a replacement stands."""


@dataclass(frozen=True)
class Report:
    """What `patch` did: changed[name of a module] says how, left[name] why not. Prints as a list."""

    changed: dict[str, str]
    left: dict[str, str]

    def __str__(self) -> str:
        lines = [f"changed  {name or '(the whole)'}: {how}" for name, how in self.changed.items()]
        lines += [f"left     {name or '(the whole)'}: {why}" for name, why in self.left.items()]
        return "\n".join(lines)


def patch(model: nn.Module, backend: str = "auto") -> Report:
    """The model's own outputs from its own weights, with its attention computed by relattn; in place.

    model: a loaded transformers model, or a module that holds some. backend: as in `relative_attention`.

    Modules that add a position bias are switched to a relattn subclass of their own class, with the same weights under
    the same names. Where a model takes an attn_implementation, that becomes "relattn". Checkpoints saved before and
    after are interchangeable.

    Raises UnsupportedError: when nothing in the model can be changed, or when relattn is not tested with the installed
    version of transformers; ValueError: when the model is patched already, or when there is no such backend; TypeError:
    when it is no module. The model is then as it was.
    """
    check_version()
    check_backend(backend)
    if not isinstance(model, nn.Module):
        raise TypeError(f"model: got {type(model).__name__}; expected a transformers model")
    modules = dict(model.named_modules())
    if any("relattn_backend" in vars(module) for module in modules.values()):
        raise ValueError(
            "model: is patched already; call relattn.hf.unpatch on it first, for instance to choose another backend"
        )
    verdicts = {name: said for name, module in modules.items() if (said := _verdict(name, module, modules)) is not None}
    changed = {name: how for name, (can, how) in verdicts.items() if can}
    left = {name: why for name, (can, why) in verdicts.items() if not can}
    if not changed:
        raise UnsupportedError(
            f"model: relattn can change no attention of {type(model).__name__} "
            f"({'; '.join(sorted(set(left.values()))) or 'it has none'}); it is as it was"
        )
    configs = _configs(changed, modules)
    torn = next((name for name in left if set(_configs([name], modules)) & set(configs)), None)
    if torn is not None:
        raise UnsupportedError(
            f"model: {torn} cannot be changed ({left[torn]}) and takes its masks from where others take theirs; "
            "nothing was changed"
        )
    for module in (modules[name] for name in changed):
        module.__class__ = REPLACEMENTS.get(type(module), type(module))
        module.relattn_backend = backend  # pyright: ignore[reportArgumentType]
    model._relattn_configs = [  # pyright: ignore[reportArgumentType]
        (config, config._attn_implementation) for config in configs.values()
    ]
    for config in configs.values():
        config._attn_implementation_internal = NAME
    return Report(changed, left)


def unpatch(model: nn.Module) -> None:
    """Put back what `patch` changed.

    Raises ValueError: when `patch` was not called with this module.
    """
    configs: list[tuple[PreTrainedConfig, str | None]] | None = getattr(model, "_relattn_configs", None)
    if configs is None:
        raise ValueError(f"model: relattn.hf.patch was not called with this {type(model).__name__}; nothing to undo")
    for config, implementation in configs:
        config._attn_implementation_internal = implementation
    for module in model.modules():
        vars(module).pop("relattn_backend", None)
        module.__class__ = ORIGINALS.get(type(module), type(module))
    del model._relattn_configs


@contextmanager
def patched(model: nn.Module, backend: str = "auto") -> Iterator[Report]:
    """`patch` inside, `unpatch` on the way out."""
    report = patch(model, backend)
    try:
        yield report
    finally:
        unpatch(model)


def _verdict(name: str, module: nn.Module, modules: dict[str, nn.Module]) -> tuple[bool, str] | None:
    """Whether it can be changed, and how or why not; None for what is no attention."""
    kind = type(module).__name__
    if type(module) in REPLACEMENTS:
        replacement = REPLACEMENTS[type(module)]
        reason = replacement.cannot(module) or _cannot_here(replacement, name, modules)
        return (False, reason) if reason else (True, f"{kind} -> {replacement.__name__}")
    if isinstance(module, tuple(REPLACEMENTS)):
        return False, f"{kind} is a subclass, and may compute something else than its base"
    if not _attends(module):
        return None
    owner = _around(name, modules, lambda outer: isinstance(outer, PreTrainedModel))
    if owner is None or not owner._can_set_attn_implementation() or not _asks_the_interface(type(module)):
        return False, f"{kind} takes no attn_implementation, and relattn has no replacement"
    return True, f"{kind} with attn_implementation={NAME!r}"


def _around(name: str, modules: dict[str, nn.Module], wanted: Callable[[nn.Module], bool]) -> Any:
    """The innermost of a module and those around it that is `wanted`."""
    while not wanted(modules[name]):
        if not name:
            return None
        name = name.rpartition(".")[0]
    return modules[name]


def _cannot_here(replacement: type[Replacement], name: str, modules: dict[str, nn.Module]) -> str | None:
    """Why the replacement would not run, or not be understood, where this module stands; None where it would."""
    kind, stack = type(modules[name]).__name__, replacement.stack
    if "forward" in vars(modules[name]):
        return f"a hook has taken the place of {kind}.forward; patch the model before, or remove the hook"
    if stack is not None and _around(name, modules, lambda outer: isinstance(outer, stack)) is None:
        return f"{kind} shares its bias with the other layers of a {stack.__name__}; patch that, or the model"
    return None


def _configs(names: Iterable[str], modules: dict[str, nn.Module]) -> dict[int, PreTrainedConfig]:
    """The configurations, by identity, by which masks are made for these modules."""
    holders = (
        _around(name, modules, lambda outer: isinstance(getattr(outer, "config", None), PreTrainedConfig))
        for name in names
    )
    return {id(holder.config): holder.config for holder in holders if holder is not None}


def _attends(module: nn.Module) -> bool:
    """Whether it is an attention module of transformers itself, rather than one that wraps another."""
    return _is_attention(module) and sum(map(_is_attention, module.modules())) == 1


def _is_attention(module: nn.Module) -> bool:
    """By its name or its base; what it projects with may be wrapped, by adapters for instance."""
    named = "Attention" in type(module).__name__ and type(module).__module__.startswith("transformers.")
    known = named or isinstance(module, tuple(REPLACEMENTS))
    return known and any(True for _ in module.parameters())


@functools.cache
def _asks_the_interface(kind: type[nn.Module]) -> bool:
    """Whether this class calls the attention that its configuration names; beside it, another class may."""
    return any(
        "ALL_ATTENTION_FUNCTIONS" in inspect.getsource(one) for one in kind.__mro__[: kind.__mro__.index(nn.Module)]
    )
