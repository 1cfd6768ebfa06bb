"""The results as Markdown tables for a README."""

from __future__ import annotations

from collections.abc import Callable

from measure.measurements import Measurement, Reach, Results, reach_title
from measure.memory import MIB
from relattn.cli.bench.relattn_candidates import FLOOR
from relattn.cli.bench.timing import Spread
from relattn.cli.bench.workload import MODES, Workload

NOTHING = ""


def text(results: Results) -> str:
    """Ratios to the floor and memory, one table each per mode; the regret; the longest sequences."""
    machine, settings = results.machine, results.settings
    threads = f"threads: {machine['torch_threads']}"
    place = ", ".join([machine["processor"], machine["instructions"], threads, *machine["accelerators"]])
    parts = [
        f"{results.date[:10]}, {place}; torch {results.versions['torch']}, relattn {results.versions['relattn']}; "
        f"{settings.dtype}. Times are ratios to PyTorch's own attention without encoding (the first column, in ms of "
        "this run alone; causal where ours is), medians of the ratios of pairs taken in alternation, with ± where "
        'their quartiles lie more than 10 % apart; what "auto" takes is bold. Memory is MiB of one step beyond inputs, '
        "outputs and gradients. An empty cell: there is no such pass, or a step takes too long or too much memory."
    ]
    for mode, title in MODES.items():
        chosen = [m for m in results.measurements if m.workload.mode == mode]
        if chosen:
            title = title.capitalize()
            parts += [f"{title}, time", _grid(chosen, _ratio), f"{title}, memory", _grid(chosen, _mebibytes)]
    regrets = results.regrets()
    if regrets:
        worst = max(regrets, key=lambda found: found.regret)
        parts.append(
            f'Regret of "auto", its time over that of our best measured backend, less 1: at worst {worst.regret:+.0%} '
            f"({worst.workload})."
        )
    if results.reaches:
        parts += [reach_title(results.settings), _reach_grid(results.reaches)]
    return "\n\n".join(parts) + "\n"


def _grid(measurements: list[Measurement], figure: Callable[[Measurement], str]) -> str:
    """A Markdown table: one row per workload, one column per candidate with at least one figure."""
    names = [name for name in dict.fromkeys(m.candidate for m in measurements) if _has_figure(measurements, name)]
    rows: dict[Workload, dict[str, Measurement]] = {}
    for m in measurements:
        rows.setdefault(m.workload, {})[m.candidate] = m
    lines = [_line(["workload", "L", *names]), _line(["---", *["---:"] * (len(names) + 1)])]
    for workload, found in rows.items():
        cells = [figure(found[name]) if name in found else NOTHING for name in names]
        lines.append(_line([workload.short_name, str(workload.length), *cells]))
    return "\n".join(lines)


def _reach_grid(reaches: list[Reach]) -> str:
    """A Markdown table: one row per family, one column per candidate; modelled figures are marked."""
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
            cells.append(
                NOTHING if found is None else f"{found.length:,}{'' if found.how == 'measured' else f' ({found.how})'}"
            )
        lines.append(_line([family.short_name, *cells]))
    return "\n".join(lines)


def _has_figure(measurements: list[Measurement], name: str) -> bool:
    return any(m.timing is not None or m.is_wrong for m in measurements if m.candidate == name)


def doubt(spread: Spread) -> str:
    """Half the distance of the quartiles, for the text after the median; empty where it is steady."""
    return "" if spread.is_steady else f" ±{(spread.upper - spread.lower) / 2:.2f}"


def _ratio(m: Measurement) -> str:
    if m.is_wrong:
        return "wrong"
    if m.timing is None:
        return NOTHING
    if m.candidate == FLOOR:
        return f"{1000 * m.timing.seconds.median:.2f} ms"
    median = f"{m.timing.ratio.median:.2f}"
    return f"{f'**{median}**' if m.chosen else median}{doubt(m.timing.ratio)}"


def _mebibytes(m: Measurement) -> str:
    return NOTHING if m.memory is None else f"{m.memory.beyond / MIB:.1f}"


def _line(cells: list[str]) -> str:
    return f"| {' | '.join(cells)} |"
