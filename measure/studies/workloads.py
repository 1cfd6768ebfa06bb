"""The workloads that the pages name: what is measured, at which lengths, and the goals of the ratios."""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple

from relattn.cli.bench.workload import DECODING, FORWARD, TRAINING, Workload

TOLERANCE = 1.1
"""The factor by which one length may exceed a goal for the median; also for batches of short sequences and single
heads.
"""


class Row(NamedTuple):
    """A measured row, and its goal: a bound on the median over the lengths, or on each length; None for no goal."""

    name: str
    workload: Workload
    goal: float | dict[int, float] | None = None

    @property
    def what(self) -> str:
        """The mode, and causality."""
        return f"{self.workload.mode}{', causal' * (self.workload.causal and not self.workload.decoding)}"

    @property
    def key(self) -> str:
        """Its name among the measurements of its table."""
        return f"{self.name}: {self.what}"


class Table(NamedTuple):
    """Rows that are measured at the same lengths.

    threads: the number of threads in the goals. backend: "native", or "auto" where the whole call counts.
    """

    rows: list[Row]
    lengths: tuple[int, ...]
    threads: int = 2
    backend: str = "native"


def of_encoding(name: str) -> Workload:
    """One sequence, eight heads of 64 features, float32."""
    return Workload(name, 1, 64, 8, False, FORWARD)


def in_columns(name: str, workload: Workload, goals: tuple[float, ...] = ()) -> list[Row]:
    """Forward and training step, full, then both causal; with two goals only the first two, with no goal all."""
    columns = [(False, FORWARD), (False, TRAINING), (True, FORWARD), (True, TRAINING)]
    found = [replace(workload, causal=causal, mode=mode) for causal, mode in columns[: len(goals) or 4]]
    return [Row(name, work, goal) for work, goal in zip(found, goals or (None,) * 4, strict=True)]


RELATIVE = of_encoding("relative")
TABLE_GOALS = (1.15, 1.15, 0.95, 0.95)
OWN_PAIRS = (0.80, 0.80, 0.65, 0.65)
"""The pairs' own work alone: no table and no bias."""


def _encodings() -> list[Row]:
    goals: dict[str, tuple[float, ...]] = {
        "none": OWN_PAIRS,
        "rope": OWN_PAIRS,
        "relative": TABLE_GOALS,
        "relative-heads": TABLE_GOALS,
        "t5": (0.85, 0.80, 0.65, 0.65),
        "alibi": (0.85, 0.80, 0.65, 0.65),
        "shaw-keys": (0.90, 1.0, 0.70, 0.8),
        "shaw": (1.10, 1.2, 0.85, 0.95),
        "key-query": (1.5, 1.6, 1.2, 1.3),
    }
    projected = {"disentangled": (1.5, 1.6, 1.2, 1.3), "transformer-xl": (1.15, 1.2, 0.95, 1.0)}
    rows = [row for name, bounds in goals.items() for row in in_columns(name, of_encoding(name), bounds)]
    for name, bounds in projected.items():
        rows += in_columns(name, replace(of_encoding(name), lowered=True), bounds)
        rows += in_columns(f"{name}, with its projection", of_encoding(name))
    rows += in_columns("relative, D = 32", replace(RELATIVE, head_dim=32), (1.05, 1.05))
    rows += in_columns("relative, D = 128", replace(RELATIVE, head_dim=128), (1.3, 1.3))
    return rows + in_columns("relative, bfloat16", replace(RELATIVE, dtype="bfloat16"), (0.9, 1.0))


def _decoding() -> list[Row]:
    goals: dict[str, float | None] = dict.fromkeys(("shaw-keys", "shaw", "t5", "alibi", "rope"), 0.85)
    goals = {"none": None, "relative": 0.9, "relative-heads": 1.1} | goals | {"transformer-xl": None}
    float32 = [Row(name, replace(of_encoding(name), causal=True, mode=DECODING), goal) for name, goal in goals.items()]
    return float32 + [
        Row(f"{row.name}, bfloat16", replace(row.workload, dtype="bfloat16"), row.goal) for row in float32
    ]


def _small() -> list[Row]:
    goals = {16: 4.0, 64: 2.0, 128: 1.4, 256: 1.4}
    names = ("none", "relative", "relative-heads", "shaw-keys", "shaw", "t5", "alibi", "rope")
    return [Row(name, replace(of_encoding(name), causal=causal), goals) for name in names for causal in (False, True)]


def _window() -> list[Row]:
    return [
        row
        for name in ("none", "relative")
        for row in in_columns(f"{name}, window 256", replace(of_encoding(name), window=256), (1.4, 1.5, 1.4, 1.5))
    ]


EASED = tuple(round(goal * TOLERANCE, 3) for goal in TABLE_GOALS)
TABLES = {
    "encodings": Table(_encodings(), (512, 1024, 2048, 4096)),
    "decoding": Table(_decoding(), (1024, 2048, 4096, 8192)),
    "small": Table(_small(), (16, 64, 128, 256), threads=1, backend="auto"),
    "window": Table(_window(), (8192,)),
    "batches": Table(in_columns("relative, B = 32", replace(RELATIVE, batch=32), EASED), (128,)),
    "heads": Table(in_columns("relative, H = 1", replace(RELATIVE, heads=1), EASED), (8192,)),
}
"""By the name of the study."""
