"""Draws lengths.png, the picture of longer windows in docs/lab.md, from the figures of `relattn-lab reproduce lengths`.

python docs/figures/draw_lengths.py measure/results/jsb/lengths.json
"""

from __future__ import annotations

import json
import statistics
import sys
from collections import defaultdict
from pathlib import Path

from matplotlib.figure import Figure

AS_TRAINED = "as trained"
COLOURS = {
    "sinusoid": "#8d99ae",
    "rope": "#2e86ab",
    "relative": "#e4572e",
    "relative+pitch+time": "#b5179e",
    "alibi": "#c9a227",
    "t5": "#5fa55a",
    "shaw": "#264653",
    "transformer-xl": "#7b2cbf",
}
"""In the order of their losses at the longest window."""
NUDGED = {"shaw": 1.02, "transformer-xl": 0.97}
"""Factors for the height of a name that would lie over another."""


def main(figures_file: Path) -> None:
    """Nats per token at each length, mean over seeds."""
    runs = json.loads(figures_file.read_text())
    losses: dict[str, dict[int, list[float]]] = defaultdict(lambda: defaultdict(list))
    for run in runs:
        for length, nats in run["losses"][AS_TRAINED].items():
            losses[run["encoding"]][int(length)].append(nats)
    figure = Figure(figsize=(8.4, 4.2), dpi=150, layout="constrained")
    axes = figure.subplots()
    for encoding, colour in COLOURS.items():
        lengths = sorted(losses[encoding])
        means = [statistics.mean(losses[encoding][length]) for length in lengths]
        axes.plot(range(len(lengths)), means, "o-", color=colour, ms=4)
        height = means[-1] * NUDGED.get(encoding, 1.0)
        axes.text(len(lengths) - 0.93, height, encoding, color=colour, va="center", fontsize=9)
    lengths = sorted(losses["relative"])
    axes.set_xticks(range(len(lengths)), [f"{length:,} tokens" for length in lengths])
    ticks = [0.4, 0.5, 0.7, 1.0, 1.5]
    axes.set_yscale("log")
    axes.set_yticks(ticks, [f"{tick:.1f}" for tick in ticks])
    axes.minorticks_off()
    axes.set_xlim(-0.15, 3.9)
    axes.set_ylim(0.37, 1.85)
    axes.grid(axis="y", alpha=0.25)
    axes.spines[["top", "right"]].set_visible(False)
    axes.set_ylabel("nats per token, JSB test pieces")
    axes.set_title("trained at 256 tokens, evaluated at more", fontsize=11)
    figure.savefig(Path(__file__).parent / "lengths.png")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
