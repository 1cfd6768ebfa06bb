"""Why the backend `blocks` computes e^x by exp2 and makes tiny weights zero: `backends/blocks.py`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial

import torch
from torch import Tensor

from measure.studies.study import Figures, Study, figures_of, shown, table
from relattn.cli.bench.timing import interleaved

SHAPE = (2, 128, 2048)
WIDTH = 64
SECONDS = 0.5
ORDINARY_EXPONENT, ORDINARY_WEIGHT = -10.0, 0.1
EXPONENTS = {"far, -1000": -1000.0, "hidden, -inf": -torch.inf, "subnormal, -95": -95.0}
WEIGHTS = {"some of them subnormal, weights of 1e-37": 1e-37, "weights subnormal, 1e-39": 1e-39}
FUNCTIONS = {"exp": (torch.exp, 1.0), "exp2": (torch.exp2, 1.4427)}
SETTING = (
    "Times of exp and exp2 at numbers of one kind, and of weights @ values where a tenth of the weights is tiny, "
    f"divided by the times at ordinary numbers (exponent {ORDINARY_EXPONENT:g}, weight {ORDINARY_WEIGHT:g}). Medians "
    "of at least fifteen pairs taken in turn, one thread, float32; ± marks quartiles that lie more than 10 % apart."
)


def study(name: str) -> Study:
    """Both functions at every kind of number, and the products."""
    measurements: dict[str, Callable[[], Figures]] = {
        f"{function}: {kind}": partial(exponential, function, number)
        for kind, number in EXPONENTS.items()
        for function in FUNCTIONS
    }
    measurements |= {f"products: {kind}": partial(product, number) for kind, number in WEIGHTS.items()}
    return Study(SETTING, measurements, markdown, threads=1)


def exponential(name: str, number: float, seconds: float = SECONDS) -> Figures:
    """A function at one number."""
    (function, factor), out = FUNCTIONS[name], torch.empty(SHAPE)
    floor, given = (torch.full(SHAPE, each * factor) for each in (ORDINARY_EXPONENT, number))
    return _beside(lambda: function(floor, out=out), lambda: function(given, out=out), seconds)


def product(number: float, seconds: float = SECONDS) -> Figures:
    """weights @ values with a tenth of the weights at that number."""
    value = torch.randn(SHAPE[0], SHAPE[2], WIDTH, generator=torch.Generator().manual_seed(0))
    floor, given = torch.full(SHAPE, ORDINARY_WEIGHT), torch.full(SHAPE, ORDINARY_WEIGHT)
    given[..., : SHAPE[2] // 10] = number
    return _beside(lambda: torch.bmm(floor, value), lambda: torch.bmm(given, value), seconds)


def _beside(floor: Callable[[], Tensor], call: Callable[[], Tensor], seconds: float) -> Figures:
    return {"ratio": figures_of(interleaved(floor, call, seconds, "cpu").ratio)}


def markdown(figures: Mapping[str, Figures]) -> str:
    """One row for each kind of number."""
    rows = [[name, shown(found["ratio"])] for name, found in figures.items()]
    return table({"call": "---", "time / at ordinary numbers": "---:"}, rows)
