"""Replacement: the common part of the subclasses that replace transformers' modules."""

from __future__ import annotations

from types import FunctionType, MethodType
from typing import Any

from torch import nn

from relattn.hf.names import accepting_original_names
from relattn.interception import refuse_trace

KEPT = "_old_forward"
"""Where accelerate's hooks, which take the place of an object's forward, keep the forward that they call."""


class Replacement:
    """A mixin for a subclass of a transformers module. Objects change their class to it and keep everything else."""

    relattn_backend: str
    """The backend that `patch` was called with."""
    relattn_with_weights: bool = False
    """Whether the weights are wanted. A layer sets this if it gets the request but does not hand it to its attention.
    """
    stack: type[nn.Module] | None = None
    """The module that must be patched as a whole: its layers hand on values that only the replacements understand."""
    by_name: bool = True
    """Whether its masks depend on the name of the attention in a configuration; `patch` then sets the name."""
    needs: tuple[str, ...] = ()
    """Methods of the original that this one relies on; those that it overrides are checked without being named."""

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        for method in overridden(cls):
            setattr(cls, method, accepting_original_names(getattr(cls, method), getattr(original(cls), method)))

    @staticmethod
    def cannot(module: nn.Module) -> str | None:
        """Why this object of the original class cannot be replaced with its configuration; None where it can."""
        return None

    def _slow_forward(self, *_: object, **__: object) -> None:
        """What torch calls in place of `forward` under torch.jit.trace.

        Raises UnsupportedError: always.
        """
        refuse_trace()


def original(kind: type[Any]) -> type[nn.Module]:
    """The class that a replacement replaces; any other class itself."""
    return next(base for base in kind.__mro__ if not issubclass(base, Replacement))


def overridden(kind: type[Replacement]) -> list[str]:
    """The methods of the original that the replacement has in another form."""
    theirs = original(kind)
    ours = (base for base in kind.__mro__ if issubclass(base, Replacement) and base is not Replacement)
    methods = {method for base in ours for method, member in vars(base).items() if isinstance(member, FunctionType)}
    return sorted(method for method in methods if hasattr(theirs, method))


def keeps_its_forward(module: nn.Module) -> bool:
    """Whether the forward in the object is that of its class, which a hook left there, or a hook's that calls it."""
    return any(_is_of_its_class(module, name) for name in ("forward", KEPT))


def change_class(module: nn.Module, kind: type[nn.Module]) -> None:
    """Change the class of a module, and of its forward where a hook keeps it, or has left it in the object."""
    attributes = [name for name in ("forward", KEPT) if _is_of_its_class(module, name)]
    module.__class__ = kind
    for name in attributes:
        setattr(module, name, MethodType(kind.forward, module))


def _is_of_its_class(module: nn.Module, name: str) -> bool:
    """Whether the object itself holds its class's forward under this name."""
    return getattr(vars(module).get(name), "__func__", None) is type(module).forward
