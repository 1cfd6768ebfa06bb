"""Draws chorales.png, the picture of a comparison in docs/lab.md, from its results.json.

python docs/figures/draw_chorales.py benchmarks/results/chorales/results.json
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

COLOURS = {"relative": "#e4572e", "relative-heads": "#e4572e", "rope": "#2e86ab", "sinusoid": "#5fa55a"}
BIN = 32
"""Positions averaged into one point of the curves by position."""


def main(results_file: Path) -> None:
    """Two panels: nats per token at each length, and by position in the longest window."""
    results = json.loads(results_file.read_text())
    figure = Figure(figsize=(10.5, 3.9), dpi=150, layout="constrained")
    by_length, by_position = figure.subplots(1, 2)
    draw_by_length(by_length, results)
    draw_by_position(by_position, results)
    for axes in (by_length, by_position):
        axes.set_ylabel("nats per token, held-out chorales")
        axes.set_yscale("log")
        ticks = [0.3, 0.4, 0.5, 0.7, 1.0, 1.5, 2.0, 3.0]
        axes.set_yticks(ticks, [f"{tick:.1f}" for tick in ticks])
        axes.minorticks_off()
        axes.grid(axis="y", alpha=0.25)
        axes.spines[["top", "right"]].set_visible(False)
    by_length.legend(frameon=False)
    figure.savefig(Path(__file__).parent / "chorales.png")


def draw_by_length(axes: Axes, results: dict[str, Any]) -> None:
    """Mean over seeds, the sample standard deviation as bars."""
    lengths = results["lengths"]
    for index, (encoding, summary) in enumerate(results["summary"].items()):
        means = [summary[str(length)]["mean"] for length in lengths]
        spreads = [summary[str(length)]["spread"] or 0.0 for length in lengths]
        places = np.arange(len(lengths)) + 0.06 * (index - 1)
        axes.errorbar(places, means, spreads, fmt="o-", capsize=3, color=COLOURS[encoding], label=encoding)
    ngram = [results["ngram"][str(length)]["nats"] for length in lengths]
    axes.plot(range(len(lengths)), ngram, "k--", lw=1, label="n-gram")
    axes.set_xticks(range(len(lengths)), [f"{length} tokens" for length in lengths])
    axes.set_title(f"trained at {lengths[0]} tokens, evaluated at more", fontsize=11)


def draw_by_position(axes: Axes, results: dict[str, Any]) -> None:
    """Every seed's tokens together, in bins of positions of the longest window."""
    lengths = results["lengths"]
    for encoding in results["summary"]:
        runs = [run["evaluation"][str(lengths[-1])] for run in results["runs"] if run["encoding"] == encoding]
        axes.plot(*binned(runs), color=COLOURS[encoding])
    axes.plot(*binned([results["ngram"][str(lengths[-1])]]), "k--", lw=1)
    axes.axvline(lengths[0], color="0.6", lw=1, ls=":")
    axes.text(
        lengths[0] - 8,
        0.97,
        "trained length",
        color="0.4",
        fontsize=9,
        ha="right",
        va="top",
        transform=axes.get_xaxis_transform(),
    )
    axes.set_xlabel("position in a window of " + str(lengths[-1]))
    axes.set_title("where the loss is", fontsize=11)


def binned(records: list[dict[str, Any]]) -> tuple[np.ndarray, np.ndarray]:
    """The middle of each bin of positions, and the mean nats of its tokens."""
    counts = np.array([record["count"] for record in records], dtype=float)
    nats = np.array([[value or 0.0 for value in record["by_position"]] for record in records])
    size = counts.shape[1] // BIN
    total = (nats * counts)[:, : size * BIN].reshape(len(records), size, BIN).sum((0, 2))
    count = counts[:, : size * BIN].reshape(len(records), size, BIN).sum((0, 2))
    return BIN * (np.arange(size) + 0.5), total / count


if __name__ == "__main__":
    main(Path(sys.argv[1]))
