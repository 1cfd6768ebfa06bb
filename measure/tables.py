"""The results as tables for the terminal."""

from __future__ import annotations

from collections.abc import Iterator

from rich.box import SIMPLE
from rich.table import Table

from measure.measurements import Measurement, Results, reach_title
from measure.memory import MIB
from measure.power_law import PowerLaw
from relattn.cli.bench.workload import MODES, Workload

NOTHING = ""


def terminal(results: Results) -> Iterator[Table]:
    """For every family its figures and its growth; the regret of "auto"; the longest sequences; what has no figure."""
    for family in results.families():
        yield _figures(results, family)
    if results.regrets():
        yield _regrets(results)
    if results.reaches:
        yield _reaches(results)
    yield _unmeasured(results)


def _figures(results: Results, family: Workload) -> Table:
    """One section per length, and one for the exponents of time and memory in the length.

    "!" marks ratios that spread over more than 10 % in every round.
    """
    table = _table(family.family_name)
    for name in ("L", "candidate"):
        table.add_column(name, no_wrap=True)
    for name in ("ms", "ratio", "quartiles", "processor", "TFLOP/s", "MiB"):
        table.add_column(name, justify="right", no_wrap=True)
    measured = [m for m in results.measurements if m.workload.family == family and (m.timing or m.is_wrong)]
    for length in dict.fromkeys(m.workload.length for m in measured):
        first = str(length)
        for m in measured:
            if m.workload.length == length:
                table.add_row(first, _name(m), *_cells(m))
                first = NOTHING
        table.add_section()
    first = "growth"
    for candidate in results.candidates(family):
        time, memory = results.time_law(family, candidate), results.memory_law(family, candidate)
        if time or memory:
            table.add_row(first, candidate, _exponent(time), *[NOTHING] * 4, _exponent(memory))
            first = NOTHING
    return table


def _cells(m: Measurement) -> list[str]:
    if m.timing is None or m.memory is None:
        assert m.check is not None
        return ["wrong", NOTHING, f"by {m.check.error:.1e}", NOTHING, NOTHING, NOTHING]
    ratio, processor = m.timing.ratio, m.timing.processor_ratio
    return [
        f"{1000 * m.timing.seconds.median:.2f}",
        f"{ratio.median:.2f}",
        f"{ratio.lower:.2f}-{ratio.upper:.2f}{NOTHING if m.timing.ratio.is_steady else ' !'}",
        NOTHING if processor is None else f"{processor.median:.2f}",
        f"{m.teraflops:.3f}",
        f"{m.memory.beyond / MIB:.1f}",
    ]


def _name(m: Measurement) -> str:
    return f"{m.candidate} (auto)" if m.chosen else m.candidate


def _exponent(law: PowerLaw | None) -> str:
    return NOTHING if law is None else f"L^{law.exponent:.2f}"


def _table(title: str) -> Table:
    return Table(
        title=title, title_justify="left", box=SIMPLE, padding=(0, 2, 0, 0), pad_edge=False, collapse_padding=True
    )


def _regrets(results: Results) -> Table:
    table = _table('Regret of "auto": its time over the best backend of ours, less 1')
    for name in ("workload", "best backend"):
        table.add_column(name)
    table.add_column("regret", justify="right")
    regrets = results.regrets()
    for found in regrets:
        table.add_row(str(found.workload), found.best, f"{found.regret:+.1%}", end_section=found is regrets[-1])
    table.add_row("worst", NOTHING, f"{max(found.regret for found in regrets):+.1%}")
    return table


def _reaches(results: Results) -> Table:
    """One row per candidate with a figure, one column per family."""
    table = _table(reach_title(results.settings))
    families = list(dict.fromkeys(reach.family for reach in results.reaches))
    table.add_column("candidate")
    for family in families:
        table.add_column(family.short_name, justify="right")
    rows: dict[str, dict[Workload, str]] = {}
    for reach in results.reaches:
        if reach.longest is not None:
            rows.setdefault(reach.candidate, {})[reach.family] = f"{reach.longest.length:,}\n{reach.longest.how}"
    for candidate, found in rows.items():
        table.add_row(candidate, *(found.get(family, NOTHING) for family in families))
    return table


def _unmeasured(results: Results) -> Table:
    """One row per candidate and reason, with its workloads."""
    table = _table("Not measured")
    for name in ("candidate", "why", "where"):
        table.add_column(name)
    found: dict[tuple[str, str], list[Workload]] = {}
    for m in results.measurements:
        if m.reason is not None and not m.is_wrong:
            found.setdefault((m.candidate, m.reason), []).append(m.workload)
    every_mode = {m.workload.mode for m in results.measurements}
    every_length = {m.workload.length for m in results.measurements}
    order = list(dict.fromkeys(m.candidate for m in results.measurements))
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
