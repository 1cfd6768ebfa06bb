"""Replacement: the common part of the subclasses that replace transformers' modules."""

from __future__ import annotations

from typing import Any

from torch import nn

from relattn.watched import refuse_trace


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
