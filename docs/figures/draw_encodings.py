"""Draw the pictures of docs/pictures.md: what every encoding adds to the score matrix.

    python docs/figures/draw_encodings.py [FOLDER]      (default: the folder of this file)

All tokens are alike: every feature of every query and key is 1. So what differs in the matrix is the encoding's. It is
asked twice through `relattn.relative_attention`, with the encoding and without, for S = log(weights) + lse.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any, NamedTuple

import torch
from canvas import FAINT, FUTURE, INK, PAPER, PAST
from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.colors import LinearSegmentedColormap, TwoSlopeNorm
from matplotlib.figure import Figure
from torch import Tensor

import relattn

LENGTH, WIDTH, GRID = 12, 8, (3, 4)
COLOURS = LinearSegmentedColormap.from_list("added", [PAST[1], PAPER, FUTURE[1]])


class Subject(NamedTuple):
    """An encoding of one head, and whether it stands on the grid."""

    encoding: relattn.RelativeEncoding
    on_grid: bool = False


def subjects() -> dict[str, Subject]:
    """Every encoding by the name of its picture; some draw numbers when they are made."""
    torch.manual_seed(20)
    return {
        "relative": Subject(relattn.RelativeEmbedding(WIDTH, LENGTH)),
        "shaw": Subject(relattn.ShawEmbedding(WIDTH, 3, values=False)),
        "transformer_xl": Subject(relattn.TransformerXLEmbedding(1, WIDTH)),
        "t5": Subject(relattn.T5Bias(1, num_buckets=8, max_distance=16)),
        "alibi": Subject(relattn.AlibiBias(1, slopes=[0.25])),
        "kerple": Subject(relattn.KerpleBias(1)),
        "sandwich": Subject(relattn.SandwichBias(1)),
        "function": Subject(relattn.FunctionBias(lambda offsets: torch.cos(offsets * 0.9)[None], 1)),
        "rotary": Subject(relattn.RotaryEmbedding(WIDTH)),
        "disentangled": Subject(relattn.DisentangledEmbedding(1, WIDTH, embed_dim=WIDTH, max_distance=4)),
        "key_query": Subject(relattn.KeyQueryEmbedding(WIDTH, LENGTH)),
        "sums": Subject(relattn.ShawEmbedding(WIDTH, 2, values=False) + relattn.AlibiBias(1, slopes=[0.25])),
        "grid_bias": Subject(relattn.GridBias(GRID, 1), on_grid=True),
        "grid_embedding": Subject(relattn.GridEmbedding(WIDTH, GRID), on_grid=True),
        "log_grid": Subject(relattn.LogGridBias(GRID, 1), on_grid=True),
    }


def trained(subject: Subject, name: str) -> Subject:
    """Learned tables with numbers that can be told apart; parameters of a formula stay where they start."""
    encoding = subject.encoding.double()
    if name not in ("kerple", "alibi"):
        generator = torch.Generator().manual_seed(20)
        with torch.no_grad():
            for parameter in encoding.parameters():
                parameter.copy_(torch.randn(parameter.shape, generator=generator, dtype=torch.float64) * 0.5)
    return subject._replace(encoding=encoding)


def scores(encoding: relattn.RelativeEncoding | None, positions: dict[str, Any]) -> Tensor:
    """S of tokens that are all alike, [LENGTH, LENGTH]."""
    same = torch.ones(1, 1, LENGTH, WIDTH, dtype=torch.float64)
    asked = {"encoding": encoding, "query_position": positions or 0, "key_position": positions or 0}
    _, lse = relattn.attention_and_lse(same, same, same, **asked)
    weights = relattn.attention_weights(same, same, same, **asked)
    return (weights.log() + lse[..., None])[0, 0]


def added(subject: Subject) -> Tensor:
    """What the encoding adds to S."""
    positions: dict[str, Any] = dict(relattn.grid(*GRID)) if subject.on_grid else {}
    with torch.no_grad():
        return scores(subject.encoding, positions) - scores(None, positions)


def squares(axes: Axes, values: Tensor, reach: float) -> None:
    """A matrix as coloured squares, row 0 on top."""
    norm = TwoSlopeNorm(0.0, -reach, reach)
    axes.pcolormesh(values.numpy(), cmap=COLOURS, norm=norm, edgecolors=PAPER, linewidth=0.3)
    axes.set_aspect("equal")
    axes.invert_yaxis()
    axes.set_xticks([])
    axes.set_yticks([])


def draw(subject: Subject, path: Path) -> None:
    """The matrix, and beside it the row of offsets; of a grid, what one query sees."""
    values = added(subject)
    reach = max(float(values.abs().max()), 1e-6)
    figure = Figure(figsize=(6.6, 2.9), facecolor=PAPER)
    left, right = figure.add_axes((0.07, 0.11, 0.36, 0.78)), figure.add_axes((0.56, 0.2, 0.4, 0.64))
    squares(left, values, reach)
    left.set_title(f"added to S: {-reach:+.2g} (blue) to {reach:+.2g}".replace("-", "−"), fontsize=8, color=INK)
    left.set_ylabel("query i", fontsize=8, color=FAINT)
    left.set_xlabel("key j", fontsize=8, color=FAINT)
    if subject.on_grid:
        query = LENGTH // 2 - 1
        squares(right, values[query].reshape(GRID), reach)
        right.set_title("for the marked query, on the grid", fontsize=8, color=INK)
        right.plot(query % GRID[1] + 0.5, query // GRID[1] + 0.5, "o", color=INK, markersize=5)
    else:
        offsets = range(1 - LENGTH, LENGTH)
        row = torch.cat([values[1:, 0].flip(0), values[0]]).numpy()
        right.axhline(0, color=FAINT, linewidth=0.6)
        right.bar(
            offsets,
            row,
            width=0.8,
            color=COLOURS(TwoSlopeNorm(0.0, -reach, reach)(row)),
            edgecolor=FAINT,
            linewidth=0.4,
        )
        right.set_title("the row of offsets", fontsize=8, color=INK)
        right.set_xlabel("d = j − i: past, future", fontsize=8, color=FAINT)
        right.tick_params(labelsize=7, colors=FAINT)
        right.spines[["top", "right"]].set_visible(False)
    with rc_context({"svg.hashsalt": path.name, "svg.fonttype": "path"}):
        figure.savefig(path, format="svg", metadata={"Date": None})


def main(folder: Path) -> None:
    """Draw every picture into `folder`."""
    for name, subject in subjects().items():
        draw(trained(subject, name), folder / f"encoding_{name}.svg")


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).parent)
