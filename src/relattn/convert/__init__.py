"""Checkpoints of other code, to relattn and back: pure functions on state dicts.

`to_relattn` and `from_relattn` rename, transpose, reorder and rescale the attention layers of a whole checkpoint, or of
one layer; `layers` makes the modules. docs/convert.md has every format beside ours.
"""

from relattn.convert.checkpoint import from_relattn, layers, to_relattn
from relattn.convert.finding import FORMATS

__all__ = ["FORMATS", "from_relattn", "layers", "to_relattn"]
