"""The table and the picture of `measure/distributed_model.py`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

START, END = "<!-- table -->\n", "<!-- end of table -->"
LOOKS: dict[str, dict[str, Any]] = {
    "products alone": {"color": "#b8b8b8", "linestyle": "--"},
    "ring, zigzag": {"color": "#1f6f8b", "marker": "o"},
    "ring, contiguous": {"color": "#6fb7d0", "marker": "s"},
    "all-gather": {"color": "#e4572e", "marker": "D"},
    "Ulysses": {"color": "#4a7c35", "marker": "^"},
}
Seconds = Mapping[Any, Mapping[str, Sequence[float | None]]]
"""For each case and way, one time per number of ranks."""


def write(out: Path, ranks: Sequence[int], seconds: Seconds, bounds: Mapping[Any, float]) -> None:
    """Into model.md, between its two marks, and into model.svg."""
    page = out / "model.md"
    before, _, rest = page.read_text().partition(START)
    page.write_text(before + START + table(ranks, seconds) + END + rest.partition(END)[2])
    draw(out / "model.svg", ranks, seconds, bounds)


def table(ranks: Sequence[int], seconds: Seconds) -> str:
    """One line per case and way, one column per number of ranks."""
    lines = ["| tokens | a query sees | Hk | | " + " | ".join(f"{number:,}" for number in ranks) + " |"]
    lines.append("|---:|---|---:|---|" + "---:|" * len(ranks))
    for case, ways in seconds.items():
        for way, found in ways.items():
            cells = [f"{case.length:,}", sight(case), str(case.key_heads), way, *map(milliseconds, found)]
            lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def sight(case: Any) -> str:
    """Which keys a query sees."""
    return "all before it" if case.window is None else f"{case.window:,} keys"


def milliseconds(seconds: float | None) -> str:
    """Three digits; empty where there is no time."""
    if seconds is None:
        return ""
    shown = seconds * 1000
    return f"{shown:,.0f}" if shown >= 100 else f"{shown:.{1 if shown >= 10 else 2}f}"


def draw(path: Path, ranks: Sequence[int], seconds: Seconds, bounds: Mapping[Any, float]) -> None:
    """One panel per case, one row of panels per number of heads."""
    import matplotlib

    matplotlib.use("svg")
    matplotlib.rcParams["svg.hashsalt"] = "relattn"
    from matplotlib import pyplot

    rows = sorted({case.key_heads for case in seconds})
    columns = len(seconds) // len(rows)
    figure, panels = pyplot.subplots(
        len(rows), columns, figsize=(3.1 * columns, 3.0 * len(rows) + 1.0), sharex=True, squeeze=False,
        layout="constrained",
    )  # fmt: skip
    for panel, (case, ways) in zip(panels.flat, seconds.items(), strict=True):
        for way, found in ways.items():
            points = [(number, 1000 * time) for number, time in zip(ranks, found, strict=True) if time is not None]
            panel.plot(*zip(*points, strict=True), label=way, lw=1.3, ms=4, **LOOKS[way])
        if case in bounds:
            panel.axvline(
                bounds[case], color="#1f6f8b", lw=0.8, ls=":", label="the ring hides, by the formula, up to here"
            )
        panel.set_xscale("log", base=2)
        panel.set_yscale("log")
        panel.set_xlim(ranks[0] / 1.2, ranks[-1] * 1.2)
        panel.set_xticks(ranks, [str(number) for number in ranks], fontsize=8)
        panel.tick_params(labelsize=8)
        panel.set_title(
            f"{case.length:,} tokens, {case.key_heads} heads of keys\na query sees {sight(case)}", fontsize=9
        )
        panel.grid(alpha=0.25)
        panel.spines[["top", "right"]].set_visible(False)
    for panel in panels[-1]:
        panel.set_xlabel("ranks", fontsize=9)
    for row in panels:
        row[0].set_ylabel("ms for a training step of one layer", fontsize=9)
    figure.suptitle("Model, not measured: causal attention on 8 to 1,024 ranks", fontsize=12)
    lines, names = panels[0][0].get_legend_handles_labels()
    figure.legend(lines, names, loc="outside lower center", frameon=False, ncols=len(names), fontsize=9)
    figure.savefig(path, metadata={"Date": None})
    pyplot.close(figure)
