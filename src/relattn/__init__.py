"""relattn: relative positional attention for PyTorch, the field's encodings through one score equation."""

from __future__ import annotations

import importlib
import importlib.metadata
import importlib.util
import re
import sys
from typing import TYPE_CHECKING

__version__ = "0.1.0"

_PYTHON = (3, 11)
_PACKAGES = {
    "torch": (2, 6),
    "numpy": (1, 26),
    "jaxtyping": (0, 2, 25),
}  # the oldest that pass; pyproject.toml has them


def _check_requirements() -> None:
    """Python and the packages are there and new enough. Nothing is imported to see it."""
    if sys.version_info < _PYTHON:
        python = ".".join(map(str, sys.version_info[:2]))
        raise ImportError(f"relattn: got Python {python}; expected 3.11 or later; make an environment of a newer one")
    for package, oldest in _PACKAGES.items():
        version = ".".join(map(str, oldest))
        way_out = f"expected {package} {version} or later; install it: pip install '{package}>={version}'"
        try:
            installed = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:  # or it was built by hand
            if importlib.util.find_spec(package) is None:
                raise ModuleNotFoundError(f"relattn: got a Python without {package}; {way_out}", name=package) from None
        else:
            if tuple(map(int, re.findall(r"\d+", installed)[:3])) < oldest:
                raise ImportError(f"relattn: got {package} {installed}; {way_out}", name=package)


_check_requirements()

_HOMES = {
    "relative_attention": "relattn.api",
    "attention_and_lse": "relattn.api",
    "attention_weights": "relattn.api",
    "explain": "relattn.api",
    "varlen_attention": "relattn.varlen",
    "Explanation": "relattn.backends.select",
    "VisibleBlocks": "relattn.equation.visible_blocks",
    "flex_score_mod": "relattn.flex",
    "RelativeEmbedding": "relattn.encodings.relative",
    "ShawEmbedding": "relattn.encodings.shaw",
    "TransformerXLEmbedding": "relattn.encodings.transformer_xl",
    "T5Bias": "relattn.encodings.t5",
    "AlibiBias": "relattn.encodings.alibi",
    "KerpleBias": "relattn.encodings.kerple",
    "GridBias": "relattn.encodings.grid",
    "GridEmbedding": "relattn.encodings.grid",
    "LogGridBias": "relattn.encodings.log_grid",
    "SandwichBias": "relattn.encodings.sandwich",
    "FunctionBias": "relattn.encodings.function",
    "RotaryEmbedding": "relattn.encodings.rotary",
    "DisentangledEmbedding": "relattn.encodings.disentangled",
    "KeyQueryEmbedding": "relattn.encodings.key_query",
    "RelativeEncoding": "relattn.encodings.base",
    "ScoreTerms": "relattn.equation.terms",
    "OffsetTable": "relattn.equation.tables",
    "Positions": "relattn.positions.positions",
    "ContiguousPositions": "relattn.positions.contiguous",
    "ExplicitPositions": "relattn.positions.explicit",
    "GridPositions": "relattn.positions.grid",
    "grid": "relattn.positions.grid",
    "ShapeError": "relattn.errors",
    "UnsupportedError": "relattn.errors",
    "RelattnWarning": "relattn.errors",
}
_MODULES = {name: f"relattn.{name}" for name in ("nn", "hf", "keras", "convert", "errors")}
_MODULES |= {"offsets": "relattn.positions.offsets", "catalogue": "relattn.encodings.catalogue"}

if TYPE_CHECKING:
    from relattn import nn as nn
    from relattn.api import attention_and_lse as attention_and_lse
    from relattn.api import attention_weights as attention_weights
    from relattn.api import explain as explain
    from relattn.api import relative_attention as relative_attention
    from relattn.backends.select import Explanation as Explanation
    from relattn.encodings import catalogue as catalogue
    from relattn.encodings.alibi import AlibiBias as AlibiBias
    from relattn.encodings.base import RelativeEncoding as RelativeEncoding
    from relattn.encodings.disentangled import DisentangledEmbedding as DisentangledEmbedding
    from relattn.encodings.function import FunctionBias as FunctionBias
    from relattn.encodings.grid import GridBias as GridBias
    from relattn.encodings.grid import GridEmbedding as GridEmbedding
    from relattn.encodings.kerple import KerpleBias as KerpleBias
    from relattn.encodings.key_query import KeyQueryEmbedding as KeyQueryEmbedding
    from relattn.encodings.log_grid import LogGridBias as LogGridBias
    from relattn.encodings.relative import RelativeEmbedding as RelativeEmbedding
    from relattn.encodings.rotary import RotaryEmbedding as RotaryEmbedding
    from relattn.encodings.sandwich import SandwichBias as SandwichBias
    from relattn.encodings.shaw import ShawEmbedding as ShawEmbedding
    from relattn.encodings.t5 import T5Bias as T5Bias
    from relattn.encodings.transformer_xl import TransformerXLEmbedding as TransformerXLEmbedding
    from relattn.equation.tables import OffsetTable as OffsetTable
    from relattn.equation.terms import ScoreTerms as ScoreTerms
    from relattn.equation.visible_blocks import VisibleBlocks as VisibleBlocks
    from relattn.errors import RelattnWarning as RelattnWarning
    from relattn.errors import ShapeError as ShapeError
    from relattn.errors import UnsupportedError as UnsupportedError
    from relattn.flex import flex_score_mod as flex_score_mod
    from relattn.positions import offsets as offsets
    from relattn.positions.contiguous import ContiguousPositions as ContiguousPositions
    from relattn.positions.explicit import ExplicitPositions as ExplicitPositions
    from relattn.positions.grid import GridPositions as GridPositions
    from relattn.positions.grid import grid as grid
    from relattn.positions.positions import Positions as Positions
    from relattn.varlen import varlen_attention as varlen_attention

__all__ = [*_HOMES, "nn"]  # pyright: ignore[reportUnsupportedDunderAll]


def __getattr__(name: str) -> object:
    """Import a public name when it is first asked for, so that `import relattn` loads neither torch nor an extra."""
    if name in _HOMES:
        value = getattr(importlib.import_module(_HOMES[name]), name)
    elif name in _MODULES:
        value = importlib.import_module(_MODULES[name])
    else:
        raise AttributeError(f"module 'relattn' has no attribute {name!r}")
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})


if "torch" in sys.modules:  # a saved program names relattn's operators, and torch asks nobody where they are defined
    importlib.import_module("relattn.backends.select")
