"""Steps as a picture."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.collections import PatchCollection
from matplotlib.figure import Figure
from matplotlib.patches import FancyBboxPatch, Patch

from relattn.lab.music.data import SILENCE, STEPS_PER_BEAT, VOICES, check_steps
from relattn.lab.music.notes import held_notes
from relattn.support.files import atomic_path

# Okabe and Ito's palette: told apart with any colour vision
COLOURS = ("#D55E00", "#E69F00", "#009E73", "#0072B2")
PROMPT_COLOUR = "#FBF3D9"
PROMPT_EDGE = "#8A6D00"
PITCH_NAMES = ("C", "C♯", "D", "E♭", "E", "F", "F♯", "G", "A♭", "A", "B♭", "B")
BLACK_KEYS = frozenset({1, 3, 6, 8, 10})
LABELLED = frozenset({0, 4, 7, 9})
ROW_STEPS = 128
GAP = 0.12  # steps left free at either end of a note
NOTE_HEIGHT, VOICE_SHIFT = 0.62, 0.17  # semitones
WIDTH, ROW_HEIGHT, HEAD_HEIGHT = 13.0, 3.5, 0.75


def draw_pianoroll(
    path: str | Path, steps: np.ndarray, *, prompt_steps: int = 0, title: str = "", upbeat: int = 0, bar_steps: int = 16
) -> None:
    """Writes `steps` [T, 4] as a PNG: time to the right in rows of whole bars, pitch upwards, one colour a voice.

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
    starts, width = _rows(len(steps), upbeat, bar_steps)
    height = HEAD_HEIGHT + ROW_HEIGHT * len(starts)
    figure = Figure(figsize=(WIDTH, height), layout="constrained", facecolor="white")
    figure.get_layout_engine().set(hspace=0.06, h_pad=0.08)  # type: ignore[union-attr]
    for axes, start in zip(figure.subplots(len(starts), 1, squeeze=False)[:, 0], starts, strict=True):
        _draw_row(axes, steps, start, width, prompt_steps, upbeat, bar_steps)
    figure.suptitle(title, x=0.01, ha="left", fontsize=15, fontweight="bold", color="#222222", parse_math=False)
    _draw_legend(figure, prompt_steps)
    with atomic_path(path) as temporary:
        FigureCanvasAgg(figure)
        figure.savefig(temporary, format="png", dpi=130)


def _rows(length: int, upbeat: int, bar_steps: int) -> tuple[list[int], int]:
    """(the step at which each row starts, the steps that a row has room for): whole bars, and the upbeat first."""
    per_row = max(1, ROW_STEPS // bar_steps) * bar_steps
    starts = [0, *range(upbeat + per_row, length, per_row)]
    return starts, upbeat + per_row if len(starts) > 1 else length


def _draw_row(
    axes: Axes, steps: np.ndarray, start: int, width: int, prompt_steps: int, upbeat: int, bar_steps: int
) -> None:
    end = min(start + width, len(steps))
    low, high = _pitch_limits(steps)
    axes.set(xlim=(start, start + width), ylim=(low - 0.5, high + 0.5))
    for pitch in range(low, high + 1):
        if pitch % 12 in BLACK_KEYS:
            axes.fill_between(
                (start, end), pitch - 0.5, pitch + 0.5, color="#000000", alpha=0.035, linewidth=0, zorder=1
            )
    if start < prompt_steps:
        axes.axvspan(start, min(prompt_steps, end), color=PROMPT_COLOUR, linewidth=0, zorder=0)
    if start < prompt_steps < end:
        axes.axvline(prompt_steps, color=PROMPT_EDGE, linewidth=1.6, linestyle=(0, (4, 2)), zorder=3)
        for text, side in (("given  ", "right"), ("  composed", "left")):
            axes.text(
                prompt_steps, high + 0.6, text, ha=side, va="bottom", fontsize=9, style="italic", color=PROMPT_EDGE
            )
    _draw_time_grid(axes, start, end, upbeat, bar_steps)
    _draw_notes(axes, steps)
    names = [pitch for pitch in range(low, high + 1) if pitch % 12 in LABELLED]
    axes.set_yticks(names, [f"{PITCH_NAMES[pitch % 12]}{pitch // 12 - 1}" for pitch in names], fontsize=7.5)
    axes.tick_params(length=0, colors="#444444")
    axes.spines[:].set_visible(False)


def _pitch_limits(steps: np.ndarray) -> tuple[int, int]:
    heard = steps[steps != SILENCE]
    return (int(heard.min()) - 2, int(heard.max()) + 2) if heard.size else (58, 74)


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
        handles.append(Patch(facecolor=PROMPT_COLOUR, edgecolor=PROMPT_EDGE, linestyle="--", label="given"))
    figure.legend(
        handles=handles, loc="outside upper right", ncols=len(handles), frameon=False, fontsize=10, handlelength=1.2
    )
