"""The benchmark itself: every candidate on every workload, in turn with the floor."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache
from itertools import product

import torch

from relattn.cli.bench.case import step
from relattn.cli.bench.relattn_candidates import BACKEND_OF, CANDIDATES, FLOOR, Candidate, chosen_by_auto
from relattn.cli.bench.settings import Settings
from relattn.cli.bench.timing import Timing, interleaved, wait
from relattn.cli.bench.workload import Workload


@dataclass(frozen=True)
class Figure:
    """One candidate on one workload: its times beside the floor's, or the reason why there are none.

    chosen: whether "auto" takes it.
    """

    workload: Workload
    candidate: str
    timing: Timing | None
    reason: str | None
    chosen: bool


def figures(settings: Settings, advance: Callable[[int, str], None]) -> Iterator[Figure]:
    """Each cell of the grid, one after the other. advance: is told how many are done, and which comes next."""
    given_up: dict[tuple[Workload, str], str] = {}
    chosen = cache(chosen_by_auto)
    for done, (workload, name) in enumerate(product(settings.workloads(), CANDIDATES)):
        advance(done, f"{workload}: {name}")
        candidate, timing, family = CANDIDATES[name], None, (workload.family, name)
        reason = candidate.reason(workload) or given_up.get(family)
        if reason is None:
            try:
                _check_patience(candidate, workload, settings.patience)
                timing = timed(candidate, workload, settings.seconds)
            except RuntimeError as error:  # too slow, too little memory, or an UnsupportedError
                reason = str(error).strip().partition("\n")[0]
                given_up[family] = f"{reason} at L={workload.length}"
        yield Figure(workload, name, timing, reason, BACKEND_OF.get(name) == chosen(workload))


def timed(candidate: Candidate, workload: Workload, seconds: float) -> Timing:
    """A candidate beside the floor on a workload, for about `seconds`; for a forward pass only the call is timed."""
    floor, ours = _step_of(CANDIDATES[FLOOR], workload), _step_of(candidate, workload)
    with torch.set_grad_enabled(workload.training):
        return interleaved(floor, ours, seconds, workload.device)


def _check_patience(candidate: Candidate, workload: Workload, patience: float) -> None:
    first = _step_of(candidate, workload)
    with torch.set_grad_enabled(workload.training):
        if workload.device == "cuda":
            first()  # compiles and loads its kernels
        wait(workload.device)
        start = time.perf_counter()
        first()
        wait(workload.device)
    if time.perf_counter() - start > patience:
        raise RuntimeError(f"one step takes longer than {patience:g} s")


def _step_of(candidate: Candidate, workload: Workload) -> Callable[[], object]:
    case = candidate.case(workload)
    call = candidate.prepare(case)
    return (lambda: step(case, call)) if workload.training else call
