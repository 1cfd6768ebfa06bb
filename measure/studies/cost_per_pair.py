"""Does a pair of query and key cost the same at every length? The native backend beside itself at one length."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import partial

from measure.studies.ratios import candidate, checked, pairs
from measure.studies.study import Figures, Study, figures_of, shown, table
from measure.studies.workloads import Row, in_columns, of_encoding
from relattn.cli.bench.case import make_case, step
from relattn.cli.bench.timing import Timing, interleaved
from relattn.cli.bench.workload import Workload

GOAL = 1.10
SECONDS = 1.0
SETTING = (
    "Time per visible pair, divided by that at the reference length; D = 64, float32, B = 1, two threads. Medians of "
    "at least fifteen pairs taken in turn; ± marks quartiles that lie more than 10 % apart. ps: the time per pair and "
    "head at the reference length, in picoseconds. Without a window H = 2 and the reference is 4,096; with a window of "
    f"256 to each side H = 8 and the reference is 8,192. The goal is {GOAL:.2f} between the largest and the smallest."
)
RELATIVE = of_encoding("relative")
ROWS: dict[str, tuple[Row, int, tuple[int, ...]]] = {
    row.key: (row, reference, lengths)
    for rows, reference, lengths in (
        (in_columns("relative, H = 2", replace(RELATIVE, heads=2)), 4096, (1024, 2048, 8192, 16384, 32768)),
        (in_columns("relative, window 256", replace(RELATIVE, window=256)), 8192, (2048, 4096, 16384, 32768)),
    )
    for row in rows
}
"""Each with its reference length and the others."""


def study(name: str) -> Study:
    """All rows."""
    measurements = {key: partial(measured, row.workload, *lengths) for key, (row, *lengths) in ROWS.items()}
    return Study(SETTING, measurements, markdown)


def measured(workload: Workload, reference: int, lengths: tuple[int, ...], seconds: float = SECONDS) -> Figures:
    """By length, the time per pair over that at the reference, with quartiles; and the latter in picoseconds."""
    checked(candidate("native"), workload)
    ratios, picoseconds = {}, 0.0
    least = pairs(workload.at(reference))
    for length in lengths:
        timing = beside(workload, reference, length, seconds)
        ratios[str(length)] = figures_of(timing.ratio, pairs(workload.at(length)) / least)
        picoseconds = 1e12 * timing.seconds.median / timing.ratio.median / least / workload.heads
    return {"ratios": ratios, "picoseconds": round(picoseconds)}


def beside(workload: Workload, reference: int, length: int, seconds: float) -> Timing:
    """A length beside the reference."""
    native, cases = candidate("native"), [make_case(workload.at(each)) for each in (reference, length)]
    calls = [native.prepare(case) for case in cases]
    return interleaved(lambda: step(cases[0], calls[0]), lambda: step(cases[1], calls[1]), seconds, "cpu")


def markdown(figures: Mapping[str, Figures]) -> str:
    """One row for each workload."""
    rows = []
    for key, (row, _, _) in ROWS.items():
        found = figures[key]
        medians = [1.0, *(median for median, _, _ in found["ratios"].values())]
        spread = max(medians) / min(medians)
        cells = [f"{int(length):,}: {shown(ratio)}" for length, ratio in found["ratios"].items()]
        said = "met" if spread <= GOAL else "missed"
        rows.append([row.name, row.what, "; ".join(cells), str(found["picoseconds"]), f"{spread:.2f}", said])
    columns = {"encoding": "---", "": "---", "ratio, by length": "---", "ps": "---:", "largest / smallest": "---:"}
    return table(columns | {"met?": "---"}, rows)
