"""What the native backend holds beyond inputs, outputs and gradients."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial

from measure.memory import MIB, available, measure
from measure.studies.study import Figures, Study, table
from measure.studies.workloads import RELATIVE, in_columns
from relattn.cli.bench.workload import Workload

ROWS = in_columns("relative", RELATIVE)
LENGTHS = (512, 1024, 2048, 4096, 8192, 16384)
PATIENCE = 300.0
SETTING = (
    "A table with a row for every offset, one sequence, H = 8, D = 64, float32, two threads. MiB of one step in a "
    "process of its own, beyond inputs, outputs and gradients."
)


def study(name: str) -> Study:
    """Every mode at every length."""
    measurements = {
        key_of(row.what, length): partial(measured, row.workload.at(length)) for row in ROWS for length in LENGTHS
    }
    return Study(SETTING, measurements, markdown)


def key_of(what: str, length: int) -> str:
    """The name of a measurement."""
    return f"{what}, L={length}"


def measured(workload: Workload) -> Figures:
    """MiB beyond what a step is given and returns."""
    found = measure("relattn native", workload, available("cpu"), PATIENCE)
    return {"mib": round(found.beyond / MIB)}


def markdown(figures: Mapping[str, Figures]) -> str:
    """One row for each mode."""
    columns = {"step": "---"} | {f"L={length:,}": "---:" for length in LENGTHS}
    return table(columns, [
        [row.what, *(str(figures[key_of(row.what, length)]["mib"]) for length in LENGTHS)] for row in ROWS
    ])  # fmt: skip
