"""What dropout costs: a training step with it beside one without, in `native` and in `blocks`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial

import torch

import relattn
from measure.studies.study import Figures, Study, figures_of, shown, table
from relattn.cli.bench.case import Case, make_case
from relattn.cli.bench.relattn_candidates import arguments
from relattn.cli.bench.timing import interleaved
from relattn.cli.bench.workload import TRAINING, Workload

BACKENDS = ("native", "blocks")
SECONDS = 1.0
PROBABILITY = 0.1
WORKLOAD = Workload("relative", 1024, 64, 8, True, TRAINING)
SETTING = (
    f"A causal training step of {WORKLOAD.length:,} positions with dropout {PROBABILITY:g} / the same without: a table "
    "with a row for every offset, one sequence, H = 8, D = 64, float32, two threads. Medians of at least fifteen pairs "
    "taken in turn; ± marks quartiles that lie more than 10 % apart."
)


def study(name: str) -> Study:
    """Both backends."""
    return Study(SETTING, {backend: partial(measured, backend) for backend in BACKENDS}, markdown)


def measured(backend: str, workload: Workload = WORKLOAD, seconds: float = SECONDS) -> Figures:
    """The ratio's median and quartiles."""
    torch.manual_seed(0)
    case = make_case(workload)
    without, with_dropout = (_step(case, backend, probability) for probability in (0.0, PROBABILITY))
    return {"ratio": figures_of(interleaved(without, with_dropout, seconds, workload.device).ratio)}


def _step(case: Case, backend: str, probability: float) -> Callable[[], object]:
    call = partial(relattn.relative_attention, dropout_p=probability, **arguments(case, backend))  # pyright: ignore[reportArgumentType]
    return lambda: torch.autograd.grad(call(), list(case.leaves.values()), case.upstream)


def markdown(figures: Mapping[str, Figures]) -> str:
    """One row for each backend."""
    rows = [[f"`{backend}`", shown(figures[backend]["ratio"])] for backend in BACKENDS]
    return table({"backend": "---", "with / without": "---:"}, rows)
