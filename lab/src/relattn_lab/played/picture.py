"""Played music as a picture."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
from matplotlib.axes import Axes
from matplotlib.collections import PatchCollection
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

from relattn_lab.pianoroll import Row, draw_pianoroll
from relattn_lab.played.notes import END, PITCH, START, STEPS_PER_SECOND, VELOCITY

ROW_SECONDS = 20
MOST_ROWS = 12
COLOUR = np.array([0.0, 0.447, 0.698])
FAINTEST = 0.3


def draw_played(path: str | Path, notes: np.ndarray, *, duration: int, given: int = 0, title: str = "") -> None:
    """Write `notes` [N, 4] (see `read_notes`) as a PNG: seconds to the right, pitch upwards, darker where louder.

    The first `given` of `duration` hundredths of a second stand on a tinted ground. The file replaces `path` whole or
    not at all.

    Raises what `atomic_path` raises.
    """
    draw_pianoroll(
        path, _rows(max(duration, 1) / STEPS_PER_SECOND), notes[:, PITCH],
        lambda axes, row: _draw_row(axes, row, notes),
        given=given / STEPS_PER_SECOND, title=title, finish=_name_seconds,
    )  # fmt: skip


def _rows(seconds: float) -> list[Row]:
    room = max(min(seconds, ROW_SECONDS), seconds / MOST_ROWS)
    count = max(1, math.ceil(seconds / room - 1e-9))
    return [Row(row * room, min((row + 1) * room, seconds), room) for row in range(count)]


def _draw_row(axes: Axes, row: Row, notes: np.ndarray) -> None:
    begins, ends = notes[:, START] / STEPS_PER_SECOND, notes[:, END] / STEPS_PER_SECOND
    here = (begins < row.end) & (ends > row.start)
    boxes = [
        Rectangle((begin, pitch - 0.38), length, 0.76)
        for begin, length, pitch in zip(begins[here], (ends - begins)[here], notes[here, PITCH], strict=True)
    ]
    share = FAINTEST + (1 - FAINTEST) * notes[here, VELOCITY] / 127
    colours = 1 - share[:, None] * (1 - COLOUR)
    axes.add_collection(
        PatchCollection(boxes, facecolor=colours, edgecolor="white", linewidth=0.35, zorder=4), autolim=False
    )
    axes.grid(True, axis="x", color="#000000", alpha=0.08, linewidth=0.6)
    axes.tick_params(axis="x", labelsize=8.5)


def _name_seconds(figure: Figure) -> None:
    figure.axes[-1].set_xlabel("seconds", fontsize=9, color="#444444")
