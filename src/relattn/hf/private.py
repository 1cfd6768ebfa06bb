"""Private parts of transformers that relattn needs: a version without them lacks something."""

from __future__ import annotations

import importlib
from typing import Any

MODULE = "transformers.utils.output_capturing"
"""The module that records the hidden states and attention weights of a model."""


def of_recording(name: str, *attributes: str) -> Any:
    """The object of this name in `MODULE`.

    Raises ImportError: where this version does not have it, or has it without these attributes. A family whose file
    needs it is then left, with that sentence as its reason.
    """
    member = getattr(importlib.import_module(MODULE), name, None)
    missing = next((attribute for attribute in attributes if not hasattr(member, attribute)), None)
    if member is None or missing is not None:
        raise ImportError(f"{MODULE} has no {name}" if member is None else f"{name} of {MODULE} has no {missing}")
    return member
