"""One file a family of models: its attention modules on relattn, subclasses that keep every weight under its name."""

from relattn.hf.models import alibi, conformer, deberta, t5, vits

REPLACEMENTS: dict[type, type] = {
    original: replacement
    for family in (t5, deberta, conformer, vits, alibi)
    for original, replacement in family.REPLACEMENTS.items()
}
"""The modules of transformers, and what takes their place."""
