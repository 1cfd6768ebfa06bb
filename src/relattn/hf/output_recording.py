"""is_recording: whether transformers collects attention weights from modules that return them, without an argument."""

from __future__ import annotations

from typing import Any

import torch

from relattn.hf.private import of_recording

_ACTIVE: Any = of_recording("_active_collector", "get", "global_var")


def is_recording() -> bool:
    """Whether a model that was called with output_attentions=True is running in this thread."""
    collected = _ACTIVE.global_var if torch.compiler.is_compiling() else _ACTIVE.get()
    return collected is not None and any("attentions" in name for name in collected)
