"""Replacement: what the subclasses have in common that take the place of transformers' attention modules."""

from __future__ import annotations

from torch import nn


class Replacement:
    """Mixed into a subclass of an attention module, whose objects change their class and keep everything else."""

    relattn_backend: str
    """The backend that `patch` was called with."""
    stack: type[nn.Module] | None = None
    """What must be patched as a whole, for its layers hand on to each other what only the replacements understand."""

    @staticmethod
    def cannot(module: nn.Module) -> str | None:
        """Why this object of the original class cannot be replaced, as configured; None where it can."""
        return None
