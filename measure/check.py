"""Checks a candidate: its output and every gradient against the reference backend in float64.

    max|candidate - truth|  <=  c * sqrt(n) * (noise + eps * max|truth|),    c = sqrt(2 ln(2 N / p))

`noise` is how far the truth itself moves when every input is moved by one rounding, x (1 +- eps) with random signs. The
gradient of every term is moved in the same way before the encoding sums it for its parameters. (A bias of relative keys
adds the same to a whole row of scores; its gradient is 0, a sum that cancels.) So `noise` contains the conditioning of
the problem, cancelling sums included. A computation in this precision makes a rounding in every operation of its sums,
not only once. The longest sum has n terms (a row of L keys, D features and 2 D more of the relative terms). The sum of
the roundings is a martingale. It stays below c * sqrt(n) times one of them for all N elements, except with the chance p
(Azuma and Hoeffding; Higham and Mary 2019, "A new approach to probabilistic rounding error analysis"). A missing or
misplaced term is thousands of times larger in float32.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache

import torch
from torch import Tensor

from measure.candidates import Candidate
from measure.case import case_of, doubled
from relattn.cli.bench.case import Case, step
from relattn.cli.bench.relattn_candidates import relattn_call
from relattn.cli.bench.workload import Workload

LENGTH = 160
"""The length of a check, beyond a window: past Shaw's 16 and T5's 128, and no multiple of a tile."""
REFUSAL_CHANCE = 1e-9


@dataclass(frozen=True)
class Check:
    """The tensor of a candidate's answer that came closest to its allowed error, or exceeded it, in max norms."""

    tensor: str
    error: float
    allowed: float

    @property
    def right(self) -> bool:
        """Whether the answer is within rounding of the truth."""
        return self.error <= self.allowed


def check(candidate: Candidate, workload: Workload) -> Check:
    """Run the candidate once on the workload at the checks' length and compare. Its errors are raised."""
    short = candidate.given(workload.at(LENGTH + (workload.window or 0)))
    case = candidate.case(short)
    answer = step(case, candidate.prepare(case))
    truth, allowed = _truth(short)
    checks = [Check(name, _distance(answer[name], truth[name]), allowed[name]) for name in truth]
    return max(checks, key=lambda found: found.error / found.allowed if found.error < math.inf else math.inf)


@lru_cache(maxsize=8)
def _truth(workload: Workload) -> tuple[dict[str, Tensor], dict[str, float]]:
    """Output and gradients by the reference backend in float64, and the allowed error of each."""
    case = case_of(workload)
    eps = torch.finfo(case.query.dtype).eps
    truth, moved = _reference(doubled(case)), _reference(doubled(case, eps))
    terms = workload.length + 3 * workload.head_dim
    allowed = {}
    for name, tensor in truth.items():
        factor = math.sqrt(2.0 * math.log(2.0 * tensor.numel() / REFUSAL_CHANCE) * terms)
        allowed[name] = factor * (_distance(moved[name], tensor) + eps * tensor.abs().max().item())
    return truth, allowed


def _reference(case: Case) -> dict[str, Tensor]:
    return step(case, relattn_call(case, "reference"))


def _distance(answer: Tensor, truth: Tensor) -> float:
    """max|answer - truth|; inf where the answer has another shape or is not finite."""
    if answer.shape != truth.shape or not answer.isfinite().all():
        return math.inf
    return (answer.double() - truth).abs().max().item()
