"""The results as tables for the terminal."""

from __future__ import annotations

from collections.abc import Iterator

from rich.table import Table

from measure.measurements import Measurement, Results, reach_title
from measure.memory import MIB
from measure.power_law import PowerLaw
from relattn.cli.bench.table import NOTHING, TIMES, cells, named, titled, unmeasured
from relattn.cli.bench.workload import Workload


def terminal(results: Results) -> Iterator[Table]:
    """For every family its figures and its growth; the regret of "auto"; the longest sequences; what has no figure."""
    for family in results.families():
        yield _figures(results, family)
    if results.regrets():
        yield _regrets(results)
    if results.reaches:
        yield _reaches(results)
    yield unmeasured([(m.workload, m.candidate, None if m.is_wrong else m.reason) for m in results.measurements])


def _figures(results: Results, family: Workload) -> Table:
    """One section per length, and one for the exponents of time and memory in the length."""
    table = titled(family.family_name)
    for name in ("L", "candidate"):
        table.add_column(name, no_wrap=True)
    for name in (*TIMES, "MiB"):
        table.add_column(name, justify="right", no_wrap=True)
    measured = [m for m in results.measurements if m.workload.family == family and (m.timing or m.is_wrong)]
    for length in dict.fromkeys(m.workload.length for m in measured):
        first = str(length)
        for m in measured:
            if m.workload.length == length:
                table.add_row(first, named(m.candidate, m.chosen), *_cells(m))
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
    return [*cells(m.workload, m.timing), f"{m.memory.beyond / MIB:.1f}"]


def _exponent(law: PowerLaw | None) -> str:
    return NOTHING if law is None else f"L^{law.exponent:.2f}"


def _regrets(results: Results) -> Table:
    table = titled('Regret of "auto": its time over the best backend of ours, less 1')
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
    table = titled(reach_title(results.settings))
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
