"""A piano roll: time to the right in rows, pitch upwards, and what was given on a tinted ground."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from relattn.cli.files import atomic_path

GIVEN_COLOUR = "#FBF3D9"
GIVEN_EDGE = "#8A6D00"
PITCH_NAMES = ("C", "C♯", "D", "E♭", "E", "F", "F♯", "G", "A♭", "A", "B♭", "B")
BLACK_KEYS = frozenset({1, 3, 6, 8, 10})
CHORD = frozenset({0, 4, 7, 9})
"""The pitch classes that are named at the side of a roll of at most two octaves. A larger one has the Cs alone."""
TWO_OCTAVES = 24
MIDDLE = (58, 74)
"""What is shown where nothing sounds."""
MARGIN = 2
WIDTH, ROW_HEIGHT, HEAD_HEIGHT = 13.0, 3.5, 0.75


@dataclass(frozen=True)
class Row:
    """A row of the roll: it shows the times from `start` to `end`, and has room up to `start + room`."""

    start: float
    end: float
    room: float


def draw_pianoroll(
    path: str | Path,
    rows: list[Row],
    pitches: np.ndarray,
    draw: Callable[[Axes, Row], None],
    *,
    given: float = 0,
    title: str = "",
    finish: Callable[[Figure], None] | None = None,
) -> None:
    """Write the roll as a PNG. The file replaces `path` whole or not at all.

    pitches: all that sound, MIDI; they set the height, which is the same for every row. draw(axes, row): draws the
    row's notes and time grid over the ground. given: the time up to which the music was given. finish(figure): draws
    what stands beside the rows.

    Raises what `atomic_path` raises.
    """
    low, high = (int(pitches.min()) - MARGIN, int(pitches.max()) + MARGIN) if pitches.size else MIDDLE
    figure = Figure(figsize=(WIDTH, HEAD_HEIGHT + ROW_HEIGHT * len(rows)), layout="constrained", facecolor="white")
    figure.get_layout_engine().set(hspace=0.06, h_pad=0.08)  # type: ignore[union-attr]
    for axes, row in zip(figure.subplots(len(rows), 1, squeeze=False)[:, 0], rows, strict=True):
        axes.set(xlim=(row.start, row.start + row.room), ylim=(low - 0.5, high + 0.5))
        _draw_ground(axes, row, low, high, given)
        draw(axes, row)
        axes.tick_params(length=0, colors="#444444")
        axes.spines[:].set_visible(False)
    figure.suptitle(title, x=0.01, ha="left", fontsize=15, fontweight="bold", color="#222222", parse_math=False)
    if finish is not None:
        finish(figure)
    with atomic_path(path) as temporary:
        FigureCanvasAgg(figure)
        figure.savefig(temporary, format="png", dpi=130)


def _draw_ground(axes: Axes, row: Row, low: int, high: int, given: float) -> None:
    """The black keys, what was given, and the names of pitches."""
    for pitch in range(low, high + 1):
        if pitch % 12 in BLACK_KEYS:
            black = {"color": "#000000", "alpha": 0.035, "linewidth": 0, "zorder": 1}
            axes.fill_between((row.start, row.end), pitch - 0.5, pitch + 0.5, **black)
    if row.start < given:
        axes.axvspan(row.start, min(given, row.end), color=GIVEN_COLOUR, linewidth=0, zorder=0)
    if row.start < given < row.end:
        axes.axvline(given, color=GIVEN_EDGE, linewidth=1.6, linestyle=(0, (4, 2)), zorder=3)
        for text, side in (("given  ", "right"), ("  composed", "left")):
            axes.text(given, high + 0.6, text, ha=side, va="bottom", fontsize=9, style="italic", color=GIVEN_EDGE)
    named = {0} if high - low > TWO_OCTAVES else CHORD
    names = [pitch for pitch in range(low, high + 1) if pitch % 12 in named]
    axes.set_yticks(names, [f"{PITCH_NAMES[pitch % 12]}{pitch // 12 - 1}" for pitch in names], fontsize=7.5)
