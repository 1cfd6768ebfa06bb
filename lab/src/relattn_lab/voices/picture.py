"""Four voices as a picture."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from matplotlib.axes import Axes
from matplotlib.collections import PatchCollection
from matplotlib.figure import Figure
from matplotlib.patches import FancyBboxPatch, Patch

from relattn_lab.pianoroll import GIVEN_COLOUR, GIVEN_EDGE, Row, draw_pianoroll
from relattn_lab.voices.held import held_notes
from relattn_lab.voices.pieces import SILENCE, STEPS_PER_BEAT, VOICES, check_steps

# Okabe and Ito's palette: told apart with any colour vision
COLOURS = ("#D55E00", "#E69F00", "#009E73", "#0072B2")
ROW_STEPS = 128
GAP = 0.12  # steps left free at either end of a note
NOTE_HEIGHT, VOICE_SHIFT = 0.62, 0.17  # semitones


def draw_voices(
    path: str | Path, steps: np.ndarray, *, prompt_steps: int = 0, title: str = "", upbeat: int = 0, bar_steps: int = 16
) -> None:
    """Write `steps` [T, 4] as a PNG: time to the right in rows of whole bars, pitch upwards, one colour per voice.

    The first `prompt_steps` steps stand on a tinted ground, "given". Bars are numbered from the one that begins at step
    `upbeat`; `bar_steps` is their length. Equal pitches in a row are one note. The file replaces `path` whole or not at
    all.

    Raises ValueError: for a prompt longer than the piece or an impossible metre; and what `check_steps` and
    `atomic_path` raise.
    """
    check_steps(steps)
    if not 0 <= prompt_steps <= len(steps):
        raise ValueError(f"prompt_steps: got {prompt_steps}; expected 0..{len(steps)}, the steps of the piece")
    if bar_steps < 1 or not 0 <= upbeat < bar_steps:
        raise ValueError(f"upbeat, bar_steps: got {upbeat} and {bar_steps}; expected 0 <= upbeat < bar_steps")

    def draw(axes: Axes, row: Row) -> None:
        _draw_time_grid(axes, int(row.start), int(row.end), upbeat, bar_steps)
        _draw_notes(axes, steps)

    draw_pianoroll(
        path, _rows(len(steps), upbeat, bar_steps), steps[steps != SILENCE], draw,
        given=prompt_steps, title=title, finish=lambda figure: _draw_legend(figure, prompt_steps),
    )  # fmt: skip


def _rows(length: int, upbeat: int, bar_steps: int) -> list[Row]:
    """Rows of whole bars; the first has the upbeat before them."""
    per_row = max(1, ROW_STEPS // bar_steps) * bar_steps
    starts = [0, *range(upbeat + per_row, length, per_row)]
    room = upbeat + per_row if len(starts) > 1 else length
    return [Row(start, min(start + room, length), room) for start in starts]


def _draw_time_grid(axes: Axes, start: int, end: int, upbeat: int, bar_steps: int) -> None:
    low, high = axes.get_ylim()
    beats = np.arange(start + (upbeat - start) % STEPS_PER_BEAT, end + 1, STEPS_PER_BEAT)
    axes.vlines(beats, low, high, color="#000000", alpha=0.08, linewidth=0.6, zorder=2)
    bars = np.arange(start + (upbeat - start) % bar_steps, end + 1, bar_steps)
    axes.vlines(bars, low, high, color="#000000", alpha=0.45, linewidth=0.9, zorder=2)
    numbered = bars[bars < end]
    numbers = [(bar - upbeat) // bar_steps + 1 for bar in numbered]
    axes.set_xticks(numbered, [f"bar {n}" if n == 1 else str(n) for n in numbers], fontsize=8.5, ha="left")


def _draw_notes(axes: Axes, steps: np.ndarray) -> None:
    """All notes; the axes cut off those of other rows, and a note that goes on in the next row at its edge."""
    # each voice lies a little above the next one down, drawn later: where two meet on one pitch, both are seen
    for voice in reversed(range(len(VOICES))):
        bottom = (len(VOICES) / 2 - 0.5 - voice) * VOICE_SHIFT - NOTE_HEIGHT / 2
        patches = [
            FancyBboxPatch(
                (note.start + GAP, note.pitch + bottom),
                note.end - note.start - 2 * GAP,
                NOTE_HEIGHT,
                boxstyle="round,pad=0,rounding_size=0.25",
            )
            for note in held_notes(steps, voice)
        ]
        axes.add_collection(
            PatchCollection(patches, facecolor=COLOURS[voice], edgecolor="white", linewidth=0.35, zorder=4),
            autolim=False,
        )


def _draw_legend(figure: Figure, prompt_steps: int) -> None:
    handles = [Patch(color=colour, label=voice) for voice, colour in zip(VOICES, COLOURS, strict=True)]
    if prompt_steps:
        handles.append(Patch(facecolor=GIVEN_COLOUR, edgecolor=GIVEN_EDGE, linestyle="--", label="given"))
    figure.legend(
        handles=handles, loc="outside upper right", ncols=len(handles), frameon=False, fontsize=10, handlelength=1.2
    )
