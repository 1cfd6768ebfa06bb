"""Time and memory against the length, both axes logarithmic: a picture for every encoding and direction."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import matplotlib
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import NullFormatter

from measure.candidates import CANDIDATES
from measure.measurements import Measurement, Results
from measure.memory import MIB
from relattn.cli.bench.relattn_candidates import FLOOR
from relattn.cli.bench.workload import FORWARD, MODES, Workload

STYLE: dict[Any, Any] = {"font.size": 9, "axes.linewidth": 0.6, "grid.alpha": 0.25, "lines.linewidth": 1.3}
MARKS = "osD^vPX*<>hd8"
CHOSEN = 'what "auto" takes'
"""The label of the thick line under the backend that "auto" takes."""


def draw(results: Results, folder: Path) -> list[Path]:
    """Write `<encoding>[-causal][-B..-H..-D..].png` for every encoding, direction and shape; the paths."""
    pages = dict.fromkeys(replace(family, mode=FORWARD) for family in results.families())
    several = len({page.shape for page in pages}) > 1
    return [_page(results, page, folder / f"{_file_name(page, several)}.png") for page in pages]


def _file_name(page: Workload, several: bool) -> str:
    shape = f"-B{page.batch}-H{page.heads}-D{page.head_dim}" if several else ""
    return f"{page.encoding}{'-causal' if page.causal else ''}{shape}"


def _page(results: Results, page: Workload, path: Path) -> Path:
    measured = results.families()
    families = [family for mode in MODES if (family := replace(page, mode=mode)) in measured]
    with matplotlib.rc_context(STYLE):
        figure = Figure(figsize=(1.2 + 4.2 * len(families), 6.4), layout="constrained", dpi=130)
        axes = figure.subplots(2, len(families), squeeze=False, sharex=True)
        for column, family in enumerate(families):
            _panel(axes[0][column], results, family, _milliseconds)
            _panel(axes[1][column], results, family, _mebibytes)
            axes[0][column].set_title(MODES[family.mode])
            axes[1][column].set_xlabel("sequence length")
        axes[0][0].set_ylabel("ms")
        axes[1][0].set_ylabel("MiB beyond inputs, outputs, gradients")
        direction = "causal" if page.causal else "both directions"
        machine = f"{results.machine['processor']}, threads: {results.machine['torch_threads']}"
        figure.suptitle(f"{page.encoding}, {direction}: {page.shape}, {page.dtype}\n{machine}")
        named = {line.get_label(): line for panel in axes.flat for line in panel.get_lines()}
        shown = [name for name in (*CANDIDATES, CHOSEN) if name in named]
        figure.legend(
            [named[name] for name in shown], shown, loc="outside lower center", frameon=False, ncols=2 * len(families)
        )
        figure.savefig(path)
    return path


def _panel(axes: Axes, results: Results, family: Workload, figure: Callable[[Measurement], float | None]) -> None:
    axes.set_xscale("log", base=2)
    axes.set_yscale("log")
    lengths = sorted({m.workload.length for m in results.measurements if m.workload.family == family})
    for candidate in results.candidates(family):
        points = {m.workload.length: figure(m) for m in results.of(family, candidate)}
        points = {length: value for length, value in points.items() if value}
        if points:
            axes.plot(list(points), list(points.values()), label=candidate, **_look(candidate))
    taken = [m for m in results.measurements if m.workload.family == family and m.chosen]
    points = {m.workload.length: value for m in taken if (value := figure(m))}
    if points:
        axes.plot(list(points), list(points.values()), label=CHOSEN, color="#e4572e", lw=5, alpha=0.35, zorder=1)
    axes.set_xticks(lengths, list(map(str, lengths)))
    axes.xaxis.set_minor_formatter(NullFormatter())
    axes.grid(True, which="major")
    axes.spines[["top", "right"]].set_visible(False)


def _look(candidate: str) -> dict[str, Any]:
    """The floor dashed black, each of the others its own colour and mark."""
    if candidate == FLOOR:
        return {"color": "black", "ls": "--", "marker": "o", "ms": 3}
    index = list(CANDIDATES).index(candidate)
    colours = matplotlib.color_sequences["tab20"]
    return {"color": colours[index % len(colours)], "marker": MARKS[index % len(MARKS)], "ms": 4, "zorder": 2}


def _milliseconds(m: Measurement) -> float | None:
    return None if m.timing is None else 1000 * m.timing.seconds.median


def _mebibytes(m: Measurement) -> float | None:
    return None if m.memory is None else m.memory.beyond / MIB
