"""recording: whether transformers collects attention weights from the modules that return them, without asking them."""

from __future__ import annotations

import torch
from transformers.utils import output_capturing


def recording() -> bool:
    """Whether a model that was called with output_attentions=True is at work, in this thread."""
    active = output_capturing._active_collector
    collected = active.global_var if torch.compiler.is_compiling() else active.get()
    return collected is not None and any("attentions" in name for name in collected)
