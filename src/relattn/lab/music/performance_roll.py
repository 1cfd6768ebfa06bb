"""Played music as a picture."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.collections import PatchCollection
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

from relattn.lab.music.performance import END, PITCH, START, STEPS_PER_SECOND, VELOCITY
from relattn.lab.music.pianoroll import (
    BLACK_KEYS,
    HEAD_HEIGHT,
    LABELLED,
    PITCH_NAMES,
    PROMPT_COLOUR,
    PROMPT_EDGE,
    ROW_HEIGHT,
    WIDTH,
)
from relattn.support.files import atomic_path

ROW_SECONDS = 20
MOST_ROWS = 12
COLOUR = np.array([0.0, 0.447, 0.698])
FAINTEST = 0.3


def draw_performance(path: str | Path, notes: np.ndarray, *, duration: int, given: int = 0, title: str = "") -> None:
    """Writes `notes` [N, 4] (see `read_notes`) as a PNG: seconds to the right, pitch upwards, darker where louder.

    The first `given` of `duration` hundredths of a second stand on a tinted ground. The file replaces `path` whole or
    not at all.

    Raises what `atomic_path` raises.
    """
    seconds = max(duration, 1) / STEPS_PER_SECOND
    width = max(min(seconds, ROW_SECONDS), seconds / MOST_ROWS)
    rows = max(1, math.ceil(seconds / width - 1e-9))
    figure = Figure(figsize=(WIDTH, HEAD_HEIGHT + ROW_HEIGHT * rows), layout="constrained", facecolor="white")
    for row, axes in enumerate(figure.subplots(rows, 1, squeeze=False)[:, 0]):
        _draw_row(axes, notes, row * width, min((row + 1) * width, seconds), given / STEPS_PER_SECOND)
        axes.set_xlim(row * width, (row + 1) * width)
    axes.set_xlabel("seconds", fontsize=9, color="#444444")
    figure.suptitle(title, x=0.01, ha="left", fontsize=15, fontweight="bold", color="#222222", parse_math=False)
    with atomic_path(path) as temporary:
        FigureCanvasAgg(figure)
        figure.savefig(temporary, format="png", dpi=130)


def _draw_row(axes: Axes, notes: np.ndarray, start: float, end: float, given: float) -> None:
    low, high = (int(notes[:, PITCH].min()) - 2, int(notes[:, PITCH].max()) + 2) if len(notes) else (58, 74)
    axes.set_ylim(low - 0.5, high + 0.5)
    for pitch in range(low, high + 1):
        if pitch % 12 in BLACK_KEYS:
            axes.fill_between((start, end), pitch - 0.5, pitch + 0.5, color="#000000", alpha=0.035, linewidth=0)
    if start < given:
        axes.axvspan(start, min(given, end), color=PROMPT_COLOUR, linewidth=0, zorder=0)
    if start < given < end:
        axes.axvline(given, color=PROMPT_EDGE, linewidth=1.6, linestyle=(0, (4, 2)), zorder=3)
        for text, side in (("given  ", "right"), ("  composed", "left")):
            axes.text(given, high + 0.6, text, ha=side, va="bottom", fontsize=9, style="italic", color=PROMPT_EDGE)
    begins, ends = notes[:, START] / STEPS_PER_SECOND, notes[:, END] / STEPS_PER_SECOND
    here = (begins < end) & (ends > start)
    boxes = [
        Rectangle((begin, pitch - 0.38), length, 0.76)
        for begin, length, pitch in zip(begins[here], (ends - begins)[here], notes[here, PITCH], strict=True)
    ]
    share = FAINTEST + (1 - FAINTEST) * notes[here, VELOCITY] / 127
    colours = 1 - share[:, None] * (1 - COLOUR)
    axes.add_collection(
        PatchCollection(boxes, facecolor=colours, edgecolor="white", linewidth=0.35, zorder=4), autolim=False
    )
    labelled = {0} if high - low > 24 else LABELLED
    names = [pitch for pitch in range(low, high + 1) if pitch % 12 in labelled]
    axes.set_yticks(names, [f"{PITCH_NAMES[pitch % 12]}{pitch // 12 - 1}" for pitch in names], fontsize=7.5)
    axes.grid(True, axis="x", color="#000000", alpha=0.08, linewidth=0.6)
    axes.tick_params(axis="x", labelsize=8.5)
    axes.tick_params(length=0, colors="#444444")
    axes.spines[:].set_visible(False)
