"""One file a family of models: its attention modules on relattn, subclasses that keep every weight under its name."""

from relattn.hf.models import t5

REPLACEMENTS: dict[type, type] = {**t5.REPLACEMENTS}
"""The modules of transformers, and what takes their place."""
