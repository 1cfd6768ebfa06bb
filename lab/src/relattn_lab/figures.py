"""The report's pictures: matplotlib figures as inline SVG, with the colours of the page, light or dark."""

from __future__ import annotations

import io
import re
from typing import Any

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

INK = "#010203"
"""A colour that stands for the page's own: it becomes `currentColor`."""
COLOURS = ("#e4572e", "#2e86ab", "#5fa55a", "#a05ac8", "#d99b1c", "#2fa8a0", "#c8558a", "#8a8f98")
LINES = ("-", ":", "-.")
STYLE: dict[Any, Any] = {
    "svg.fonttype": "none",
    "svg.hashsalt": "relattn",
    "font.family": "sans-serif",
    "font.size": 11,
    "text.color": INK,
    "axes.edgecolor": INK,
    "axes.labelcolor": INK,
    "axes.linewidth": 0.6,
    "xtick.color": INK,
    "ytick.color": INK,
    "grid.color": INK,
    "grid.alpha": 0.13,
}
BINS_PER_LENGTH = 8


def by_length(results: dict[str, Any]) -> str:
    """Nats per token of every encoding at each length, the seeds' spread as bars; the n-gram as a line."""
    lengths = [str(length) for length in results["lengths"]]

    def draw(axes: Axes) -> None:
        for index, (encoding, summary) in enumerate(results["summary"].items()):
            places = np.arange(len(lengths)) + 0.09 * (index - (len(results["summary"]) - 1) / 2)
            means = [summary[length]["mean"] for length in lengths]
            spreads = [summary[length]["spread"] or 0.0 for length in lengths]
            axes.errorbar(places, means, spreads, marker="o", ms=6, lw=1.6, capsize=3, label=encoding, **_look(index))
        axes.set_xticks(range(len(lengths)), [f"{length} tokens" for length in lengths])
        axes.axhline(results["ngram"][lengths[0]]["nats"], color=INK, ls="--", lw=1, label="n-gram")

    return _svg(draw, "window length", (7.2, 3.6))


def training(results: dict[str, Any]) -> str:
    """Nats per token against steps: validation pieces with marks, training windows thin; means over seeds."""

    ngram = results["ngram_validation"]

    def draw(axes: Axes) -> None:
        lowest = highest = ngram
        for index, encoding in enumerate(results["summary"]):
            runs = [run for run in results["runs"] if run["encoding"] == encoding]
            axes.plot(*_mean_curve([run["training"] for run in runs]), lw=0.8, alpha=0.45, **_look(index))
            steps, losses = _mean_curve([run["validation"] for run in runs])
            axes.plot(steps, losses, lw=1.8, marker="o", ms=3.5, label=encoding, **_look(index))
            lowest, highest = min(lowest, losses.min()), max(highest, losses.min())
        axes.axhline(ngram, color=INK, ls="--", lw=1, label="n-gram")
        # the first steps fall from ln(vocabulary): far above the lowest figure nothing is to be compared
        axes.set_ylim(0.85 * lowest, max(3 * lowest, 1.1 * highest))

    return _svg(draw, "training steps", (7.2, 3.8))


def by_position(results: dict[str, Any]) -> str:
    """Nats per token against the position in windows of four times the trained length, in bins; means over seeds."""
    length, longest = results["lengths"][0], str(results["lengths"][-1])

    def draw(axes: Axes) -> None:
        for index, encoding in enumerate(results["summary"]):
            runs = [run["evaluation"][longest] for run in results["runs"] if run["encoding"] == encoding]
            places, losses = _binned(runs, length)
            axes.plot(places, losses, lw=1.8, label=encoding, **_look(index))
        axes.plot(*_binned([results["ngram"][longest]], length), color=INK, ls="--", lw=1, label="n-gram")
        axes.axvspan(0, length, color=INK, alpha=0.06, lw=0)
        axes.set_xlim(0, results["lengths"][-1])
        axes.annotate(
            "trained",
            (length, 1),
            (-4, -4),
            xycoords=("data", "axes fraction"),
            textcoords="offset points",
            ha="right",
            va="top",
        )

    return _svg(draw, "position in the window, tokens", (7.2, 3.8))


def _look(index: int) -> dict[str, Any]:
    """A colour and a line for each encoding: solid in every colour, then dotted, then dashes and dots."""
    return {"color": COLOURS[index % len(COLOURS)], "linestyle": LINES[index // len(COLOURS) % len(LINES)]}


def _svg(draw: Any, x_label: str, size: tuple[float, float]) -> str:
    with matplotlib.rc_context(STYLE):
        figure = Figure(figsize=size, layout="constrained")
        axes = figure.add_subplot()
        draw(axes)
        axes.set_xlabel(x_label)
        axes.set_ylabel("nats per token")
        axes.grid(True, axis="y")
        axes.spines[["top", "right"]].set_visible(False)
        figure.legend(loc="outside upper center", frameon=False, ncols=4, handlelength=1.4, columnspacing=1.2)
        drawn = io.StringIO()
        figure.savefig(drawn, format="svg", transparent=True, metadata={"Date": None})
    text = drawn.getvalue()
    text = text[text.index("<svg") :].replace(INK, "currentColor")
    # the width comes from the page
    return re.sub(
        r'(<svg[^>]*?) width="[^"]*"', r"\1", re.sub(r'(<svg[^>]*?) height="[^"]*"', r"\1", text, count=1), count=1
    )


def _mean_curve(curves: list[list[list[float]]]) -> tuple[np.ndarray, np.ndarray]:
    """Steps and mean losses of equally long curves of [step, loss]."""
    values = np.array(curves)
    return values[0, :, 0], values[:, :, 1].mean(0)


def _binned(records: list[dict[str, Any]], length: int) -> tuple[np.ndarray, np.ndarray]:
    """Middles of bins of an eighth of `length`, and the mean loss over all tokens in each; empty bins are left out."""
    count = np.sum([record["count"] for record in records], axis=0)
    nats = np.array([[nat or 0.0 for nat in record["by_position"]] for record in records])
    total = (nats * [record["count"] for record in records]).sum(0)
    width = max(1, length // BINS_PER_LENGTH)
    edges = np.arange(0, len(count), width)
    totals, counts = np.add.reduceat(total, edges), np.add.reduceat(count, edges)
    full = counts > 0
    return (edges + width / 2)[full], totals[full] / counts[full]
