"""The figures as tables for the terminal."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from rich.box import SIMPLE
from rich.table import Table

from relattn.cli.bench.run import Figure
from relattn.cli.bench.timing import Timing
from relattn.cli.bench.workload import MODES, Workload

NOTHING = ""
TIMES = ("ms", "ratio", "quartiles", "processor", "TFLOP/s")


def tables(figures: Sequence[Figure]) -> Iterator[Table]:
    """For every family its times; then what has none, and why."""
    for family in dict.fromkeys(figure.workload.family for figure in figures):
        yield _times(family, [one for one in figures if one.workload.family == family and one.timing])
    yield unmeasured([(one.workload, one.candidate, one.reason) for one in figures])


def _times(family: Workload, figures: Sequence[Figure]) -> Table:
    table = titled(family.family_name)
    for name in ("L", "candidate"):
        table.add_column(name, no_wrap=True)
    for name in TIMES:
        table.add_column(name, justify="right", no_wrap=True)
    for length in dict.fromkeys(figure.workload.length for figure in figures):
        first = str(length)
        for figure in figures:
            if figure.workload.length == length and figure.timing:
                table.add_row(first, named(figure.candidate, figure.chosen), *cells(figure.workload, figure.timing))
                first = NOTHING
        table.add_section()
    return table


def cells(workload: Workload, timing: Timing) -> list[str]:
    """The columns of TIMES; "!" marks ratios that spread over more than 10 % in every round."""
    ratio, processor = timing.ratio, timing.processor_ratio
    return [
        f"{1000 * timing.seconds.median:.2f}",
        f"{ratio.median:.2f}",
        f"{ratio.lower:.2f}-{ratio.upper:.2f}{NOTHING if ratio.is_steady else ' !'}",
        NOTHING if processor is None else f"{processor.median:.2f}",
        f"{workload.flops / timing.seconds.median / 1e12:.3f}",
    ]


def named(candidate: str, chosen: bool) -> str:
    """The candidate, marked where "auto" takes it."""
    return f"{candidate} (auto)" if chosen else candidate


def titled(title: str) -> Table:
    """An empty table."""
    return Table(
        title=title, title_justify="left", box=SIMPLE, padding=(0, 2, 0, 0), pad_edge=False, collapse_padding=True
    )


def unmeasured(cells: Sequence[tuple[Workload, str, str | None]]) -> Table:
    """One row per candidate and reason, with its workloads; a cell with a figure has no reason."""
    table = titled("Not measured")
    for name in ("candidate", "why", "where"):
        table.add_column(name)
    found: dict[tuple[str, str], list[Workload]] = {}
    for workload, candidate, reason in cells:
        if reason is not None:
            found.setdefault((candidate, reason), []).append(workload)
    every_mode = {workload.mode for workload, _, _ in cells}
    every_length = {workload.length for workload, _, _ in cells}
    order = list(dict.fromkeys(candidate for _, candidate, _ in cells))
    for (candidate, reason), workloads in sorted(found.items(), key=lambda item: order.index(item[0][0])):
        table.add_row(candidate, reason, _where(workloads, every_mode, every_length))
    return table


def _where(workloads: list[Workload], every_mode: set[str], every_length: set[int]) -> str:
    """One line per encoding, direction and shape, with the modes and lengths if they are not all."""
    lines = []
    for name in dict.fromkeys(workload.short_name for workload in workloads):
        lengths: dict[str, list[int]] = {}
        for workload in workloads:
            if workload.short_name == name:
                lengths.setdefault(workload.mode, []).append(workload.length)
        whole = set(lengths) == every_mode and all(set(found) == every_length for found in lengths.values())
        for mode, found in lengths.items():
            done = NOTHING if whole else f", {MODES[mode]}"
            where = NOTHING if set(found) == every_length else f", L={', '.join(map(str, found))}"
            lines.append(f"{name}{done}{where}")
    return "\n".join(dict.fromkeys(lines))
