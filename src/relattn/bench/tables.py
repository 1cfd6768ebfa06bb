"""The results as tables: for the terminal, and as Markdown for a README."""

from __future__ import annotations

from collections.abc import Iterator

from rich.table import Table

from relattn.bench.candidates import FLOOR
from relattn.bench.growth import PowerLaw
from relattn.bench.results import Measurement, Reach, Results
from relattn.bench.workload import Workload

MIB = 2**20
NOTHING = ""


def terminal(results: Results) -> Iterator[Table]:
    """For every family its figures and its growth; then the regret of "auto", and the longest sequences."""
    for family in results.families():
        yield _figures(results, family)
    if results.regrets():
        yield _regrets(results)
    if results.reaches:
        yield _reaches(results)


def unmeasured(results: Results) -> Iterator[str]:
    """A line for every candidate without figures in a family: which lengths, and why."""
    for family in results.families():
        for candidate in results.candidates(family):
            reasons: dict[str, list[int]] = {}
            for m in results.of(family, candidate):
                if m.reason is not None:
                    reasons.setdefault(m.reason, []).append(m.workload.length)
            for reason, lengths in reasons.items():
                where = ", ".join(map(str, lengths))
                yield f"{family.family_name}, L={where}: {candidate}: {reason}"


def markdown(results: Results) -> str:
    """Ratios to the floor and memory, a table each for forward and training step; the regret; the longest sequences."""
    machine, settings = results.machine, results.settings
    place = ", ".join([machine["processor"], f"{machine['torch_threads']} threads", *machine["accelerators"]])
    parts = [
        f"{results.date[:10]}, {place}; torch {results.versions['torch']}, relattn {results.versions['relattn']}; "
        f"one sequence, {settings.dtype}. Times are ratios to PyTorch's own attention without encoding (the first "
        "column, in ms; causal where ours is), medians of turns taken in alternation; memory is MiB of one step beyond "
        "inputs, outputs and gradients."
    ]
    for training, title in ((False, "Forward"), (True, "Training step")):
        chosen = [m for m in results.measurements if m.workload.training == training]
        if chosen:
            parts += [f"{title}, time", _grid(chosen, _ratio), f"{title}, memory", _grid(chosen, _mebibytes)]
    regrets = results.regrets()
    if regrets:
        worst = max(regrets, key=lambda found: found.regret)
        parts.append(
            f'Regret of "auto", its time over that of our best backend, less 1: at worst {worst.regret:+.0%} '
            f"({worst.workload})."
        )
    if results.reaches:
        parts += [_reach_title(results), _reach_grid(results.reaches)]
    return "\n\n".join(parts) + "\n"


def _figures(results: Results, family: Workload) -> Table:
    table = Table(title=family.family_name, title_justify="left")
    for name in ("L", "candidate"):
        table.add_column(name)
    for name in ("ms", "quartiles", "x floor", "TFLOP/s", "MiB beyond", "time ~ L^", "memory ~ L^"):
        table.add_column(name, justify="right")
    measured = [m for m in results.measurements if m.workload.family == family and (m.timing or _is_wrong(m))]
    lengths = list(dict.fromkeys(m.workload.length for m in measured))
    for length in lengths:
        rows = [m for m in measured if m.workload.length == length]
        for index, m in enumerate(rows):
            laws = [NOTHING, NOTHING]
            if length == lengths[-1]:
                laws = [_exponent(law(family, m.candidate)) for law in (results.time_law, results.memory_law)]
            first = str(length) if index == 0 else NOTHING
            table.add_row(first, _name(m), *_cells(m), *laws, end_section=m is rows[-1])
    return table


def _cells(m: Measurement) -> list[str]:
    if m.timing is None or m.memory is None:
        return ["wrong", f"off by {m.check.error:.1e}" if m.check else NOTHING, NOTHING, NOTHING, NOTHING]
    seconds = m.timing.seconds
    return [
        f"{1000 * seconds.median:.1f}",
        f"{1000 * seconds.lower:.1f} to {1000 * seconds.upper:.1f}",
        f"{m.timing.ratio.median:.2f}",
        f"{m.teraflops:.3f}",
        f"{m.memory.beyond / MIB:.1f}",
    ]


def _is_wrong(m: Measurement) -> bool:
    return m.check is not None and not m.check.right


def _name(m: Measurement) -> str:
    return m.candidate if m.backend is None else f"{m.candidate} ({m.backend})"


def _exponent(law: PowerLaw | None) -> str:
    return NOTHING if law is None else f"{law.exponent:.2f}"


def _regrets(results: Results) -> Table:
    table = Table(title='Regret of "auto": its time over the best backend of ours, less 1', title_justify="left")
    for name in ("workload", "best backend"):
        table.add_column(name)
    table.add_column("regret", justify="right")
    regrets = results.regrets()
    for found in regrets:
        table.add_row(str(found.workload), found.best, f"{found.regret:+.1%}", end_section=found is regrets[-1])
    table.add_row("worst", NOTHING, f"{max(found.regret for found in regrets):+.1%}")
    return table


def _reaches(results: Results) -> Table:
    table = Table(title=_reach_title(results), title_justify="left")
    for name in ("workload", "candidate"):
        table.add_column(name)
    table.add_column("L", justify="right")
    table.add_column("how")
    for reach in results.reaches:
        if reach.longest is None:
            table.add_row(reach.family.family_name, reach.candidate, NOTHING, reach.reason)
        else:
            how = (
                "measured" if reach.longest.measured else f"modelled from L={', '.join(map(str, reach.longest.basis))}"
            )
            table.add_row(reach.family.family_name, reach.candidate, f"{reach.longest.length:,}", how)
    return table


def _reach_title(results: Results) -> str:
    return (
        f"Longest sequence of which one layer's attention trains in {results.settings.max_length:g} GiB "
        "(everything counted: inputs, outputs, gradients)"
    )


def _grid(measurements: list[Measurement], figure) -> str:
    """A Markdown table: a row for every workload, a column for every candidate that has a figure somewhere."""
    names = [name for name in dict.fromkeys(m.candidate for m in measurements) if _has_figure(measurements, name)]
    rows: dict[Workload, dict[str, Measurement]] = {}
    for m in measurements:
        rows.setdefault(m.workload, {})[m.candidate] = m
    lines = [_line(["workload", "L", *names]), _line(["---", *["---:"] * (len(names) + 1)])]
    for workload, found in rows.items():
        cells = [figure(found[name]) if name in found else NOTHING for name in names]
        lines.append(_line([_short(workload, measurements), str(workload.length), *cells]))
    return "\n".join(lines)


def _reach_grid(reaches: list[Reach]) -> str:
    """A Markdown table: a row for every family, a column for every candidate; modelled figures are marked."""
    names = [
        name
        for name in dict.fromkeys(r.candidate for r in reaches)
        if any(r.longest for r in reaches if r.candidate == name)
    ]
    families = list(dict.fromkeys(reach.family for reach in reaches))
    by_place = {(reach.family, reach.candidate): reach.longest for reach in reaches}
    lines = [_line(["workload", *names]), _line(["---", *["---:"] * len(names)])]
    for family in families:
        cells = []
        for name in names:
            found = by_place.get((family, name))
            cells.append(NOTHING if found is None else f"{found.length:,}{'' if found.measured else ' (modelled)'}")
        lines.append(_line([_words(family), *cells]))
    return "\n".join(lines)


def _has_figure(measurements: list[Measurement], name: str) -> bool:
    return any(m.timing is not None or _is_wrong(m) for m in measurements if m.candidate == name)


def _ratio(m: Measurement) -> str:
    if _is_wrong(m):
        return "wrong"
    if m.timing is None:
        return NOTHING
    return f"{1000 * m.timing.seconds.median:.1f} ms" if m.candidate == FLOOR else f"{m.timing.ratio.median:.2f}"


def _mebibytes(m: Measurement) -> str:
    return NOTHING if m.memory is None else f"{m.memory.beyond / MIB:.1f}"


def _short(workload: Workload, measurements: list[Measurement]) -> str:
    """Encoding and direction; heads and width too where they differ."""
    shapes = {(m.workload.heads, m.workload.head_dim) for m in measurements}
    shape = f", H={workload.heads}, D={workload.head_dim}" if len(shapes) > 1 else ""
    return f"{workload.encoding}{', causal' if workload.causal else ''}{shape}"


def _words(family: Workload) -> str:
    direction = ", causal" if family.causal else ""
    return f"{family.encoding}{direction}, H={family.heads}, D={family.head_dim}"


def _line(cells: list[str]) -> str:
    return f"| {' | '.join(cells)} |"
