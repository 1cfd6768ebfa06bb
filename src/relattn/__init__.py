"""relattn: relative positional attention for PyTorch, the field's encodings through one score equation."""

from __future__ import annotations

import importlib
import sys
from typing import TYPE_CHECKING

from relattn import requirements

__version__ = "0.1.0"

requirements.check()

_HOMES = {
    "relative_attention": "relattn.functional",
    "attention_weights": "relattn.functional",
    "explain": "relattn.functional",
    "Explanation": "relattn.backends.select",
    "flex_score_mod": "relattn.flex",
    "RelativeEmbedding": "relattn.encodings",
    "ShawEmbedding": "relattn.encodings",
    "TransformerXLEmbedding": "relattn.encodings",
    "T5Bias": "relattn.encodings",
    "AlibiBias": "relattn.encodings",
    "KerpleBias": "relattn.encodings",
    "GridBias": "relattn.encodings",
    "GridEmbedding": "relattn.encodings",
    "LogGridBias": "relattn.encodings",
    "SandwichBias": "relattn.encodings",
    "FunctionBias": "relattn.encodings",
    "RotaryEmbedding": "relattn.encodings",
    "DisentangledEmbedding": "relattn.encodings",
    "KeyQueryEmbedding": "relattn.encodings",
    "RelativeEncoding": "relattn.encodings",
    "ScoreTerms": "relattn.score.terms",
    "OffsetTable": "relattn.score.table",
    "Positions": "relattn.score.positions",
    "Run": "relattn.score.position",
    "Listed": "relattn.score.position",
    "Digits": "relattn.score.digits",
    "grid": "relattn.score.digits",
    "ShapeError": "relattn.errors",
    "UnsupportedError": "relattn.errors",
    "RelattnWarning": "relattn.errors",
}
_SUBPACKAGES = ("nn", "hf", "keras", "convert", "offsets", "errors")

if TYPE_CHECKING:
    from relattn import nn as nn
    from relattn.backends.select import Explanation as Explanation
    from relattn.encodings import AlibiBias as AlibiBias
    from relattn.encodings import DisentangledEmbedding as DisentangledEmbedding
    from relattn.encodings import FunctionBias as FunctionBias
    from relattn.encodings import GridBias as GridBias
    from relattn.encodings import GridEmbedding as GridEmbedding
    from relattn.encodings import KerpleBias as KerpleBias
    from relattn.encodings import KeyQueryEmbedding as KeyQueryEmbedding
    from relattn.encodings import LogGridBias as LogGridBias
    from relattn.encodings import RelativeEmbedding as RelativeEmbedding
    from relattn.encodings import RelativeEncoding as RelativeEncoding
    from relattn.encodings import RotaryEmbedding as RotaryEmbedding
    from relattn.encodings import SandwichBias as SandwichBias
    from relattn.encodings import ShawEmbedding as ShawEmbedding
    from relattn.encodings import T5Bias as T5Bias
    from relattn.encodings import TransformerXLEmbedding as TransformerXLEmbedding
    from relattn.errors import RelattnWarning as RelattnWarning
    from relattn.errors import ShapeError as ShapeError
    from relattn.errors import UnsupportedError as UnsupportedError
    from relattn.flex import flex_score_mod as flex_score_mod
    from relattn.functional import attention_weights as attention_weights
    from relattn.functional import explain as explain
    from relattn.functional import relative_attention as relative_attention
    from relattn.score.digits import Digits as Digits
    from relattn.score.digits import grid as grid
    from relattn.score.position import Listed as Listed
    from relattn.score.position import Run as Run
    from relattn.score.positions import Positions as Positions
    from relattn.score.table import OffsetTable as OffsetTable
    from relattn.score.terms import ScoreTerms as ScoreTerms

__all__ = [*_HOMES, "nn"]  # pyright: ignore[reportUnsupportedDunderAll]


def __getattr__(name: str) -> object:
    """Import a public name when it is first asked for, so that `import relattn` loads neither torch nor an extra."""
    if name in _HOMES:
        value = getattr(importlib.import_module(_HOMES[name]), name)
    elif name in _SUBPACKAGES:
        value = importlib.import_module(f"relattn.{name}")
    else:
        raise AttributeError(f"module 'relattn' has no attribute {name!r}")
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})


if "torch" in sys.modules:  # a saved program names relattn's operators, and torch asks nobody where they are defined
    importlib.import_module("relattn.backends.select")
