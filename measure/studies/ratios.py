"""The native backend beside PyTorch's own attention without any encoding: the ratio of their times.

Before it is timed, every workload's answer and gradients are compared with float64 (`measure.check`).
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping
from dataclasses import replace
from functools import partial

from measure.candidates import CANDIDATES, Candidate
from measure.check import check
from measure.studies.study import Figures, Study, figures_of, shown, table
from measure.studies.workloads import TABLES, TOLERANCE, Row, Table
from relattn.cli.bench.relattn_candidates import relattn_call
from relattn.cli.bench.run import timed
from relattn.cli.bench.workload import Workload

SECONDS = 1.0
"""For the pairs of one cell; fifteen pairs at least."""
SETTING = (
    "Time / PyTorch's own attention without any encoding, in the same shape, dtype and causality. One sequence, H = 8, "
    "D = 64, float32, unless a row says otherwise. Each cell is the median ratio of at least fifteen pairs taken in "
    "turn. ± marks a cell whose quartiles lie more than 10 % apart in three rounds."
)
RULE = f" A goal is met where the median over the lengths meets it and no length exceeds {TOLERANCE:g} times it."
MORE = {
    "encodings": (
        " The rows `transformer-xl` and `disentangled` have their tables projected beforehand, and a training step "
        "gives the gradients of the projected rows and of r. The rows with a projection have it in the time."
    ),
    "window": " The ratio is divided by the window's share of the pairs. Offsets -256 to 256; causal: to 0.",
    "small": ' The whole call with its checks and `backend="auto"`, one thread, no gradients. A goal is for a length.',
    "decoding": " One query; the keys lie in a cache, and rope's are turned already. No gradients.",
}


def study(name: str) -> Study:
    """The table of that name."""
    asked = TABLES[name]
    measurements = {row.key: partial(measured, row.workload, asked) for row in asked.rows}
    rule = "" if name == "small" else RULE
    return Study(SETTING + MORE.get(name, "") + rule, measurements, partial(markdown, asked), asked.threads)


def candidate(backend: str) -> Candidate:
    """A backend of ours, or "auto"."""
    native = CANDIDATES["relattn native"]
    return native if backend == "native" else replace(native, prepare=partial(relattn_call, backend=backend))


def checked(who: Candidate, workload: Workload) -> None:
    """Raises RuntimeError: where the answer or a gradient is wrong."""
    found = check(who, workload)
    if not found.right:
        raise RuntimeError(f"{workload}: {found.tensor} is off by {found.error:.1e}, allowed {found.allowed:.1e}")


def share(workload: Workload) -> float:
    """The visible pairs divided by those of the same attention without a window."""
    return pairs(workload) / pairs(replace(workload, window=None))


def pairs(workload: Workload) -> int:
    """The number of visible pairs of a query and a key, per head."""
    if workload.decoding:
        return workload.reach
    past = workload.reach * workload.length - workload.reach * (workload.reach - 1) // 2
    return past if workload.causal else 2 * past - workload.length


def measured(workload: Workload, asked: Table, seconds: float = SECONDS) -> Figures:
    """By length, the ratio's median and quartiles."""
    who = candidate(asked.backend)
    checked(who, workload)
    return {str(length): of_length(who, workload.at(length), seconds) for length in asked.lengths}


def of_length(who: Candidate, workload: Workload, seconds: float) -> list[float]:
    """The ratio's median and quartiles, over the window's share of the pairs."""
    return figures_of(timed(who, workload, seconds).ratio, share(workload))


def verdict(goal: float | dict[int, float] | None, ratios: Mapping[int, float]) -> tuple[str, str]:
    """The goal, and whether the ratios meet it."""
    if goal is None:
        return "", ""
    if isinstance(goal, dict):
        late = [length for length in ratios if ratios[length] > goal[length]]
        said = " / ".join(f"{goal[length]:g}" for length in ratios)
        return said, f"missed at {', '.join(map(str, late))}" if late else "met"
    late = [length for length, ratio in ratios.items() if ratio > TOLERANCE * goal]
    median = round(statistics.median(ratios.values()), 2)
    missed = [f"by {median / goal - 1:.0%}"] if median > goal else []
    missed += [f"at {', '.join(map(str, late))}"] if late else []
    return f"{goal:.2f}", f"missed {' and '.join(missed)}" if missed else "met"


def markdown(asked: Table, figures: Mapping[str, Figures]) -> str:
    """One row for each workload, one column for each length."""
    columns = {"encoding": "---", "": "---"} | {f"L={length:,}": "---:" for length in asked.lengths}
    return table(columns | {"median": "---:", "goal": "---:", "met?": "---"}, [
        [row.name, row.what, *map(shown, figures[row.key].values()), *_judged(row, figures[row.key])]
        for row in asked.rows
    ])  # fmt: skip


def medians(figures: Figures) -> dict[int, float]:
    """By length, as they are shown."""
    return {int(length): round(found[0], 2) for length, found in figures.items()}


def _judged(row: Row, figures: Figures) -> list[str]:
    ratios = medians(figures)
    median = "" if isinstance(row.goal, dict) else f"{statistics.median(ratios.values()):.2f}"
    return [median, *verdict(row.goal, ratios)]
