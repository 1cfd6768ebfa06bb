"""A canvas in units of cells: matrices of products q_i . RK[d], whose cells show the offset d, coloured by it, and the
query i; boxes, arrows and text beside them.
"""

from __future__ import annotations

from pathlib import Path

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import FancyArrowPatch, FancyBboxPatch, Rectangle
from torch import Tensor

INK, FAINT, PAPER = "#22303c", "#6b7885", "#ffffff"
PAST, NOW, FUTURE = ("#dcebf7", "#1f6fb2"), "#f6c945", ("#fbe3d3", "#d1602c")
CELL = 0.92

Colour = tuple[float, float, float]


def decode(value: float) -> tuple[int, int] | None:
    """The query i and the row m that made a product; None for padding."""
    number = round(float(value))
    return None if number == 0 else (number // 100, number % 100 - 1)


def mix(a: str, b: str, share: float) -> Colour:
    """The colour `share` of the way from a to b."""
    first, second = matplotlib.colors.to_rgb(a), matplotlib.colors.to_rgb(b)
    red, green, blue = (x + share * (y - x) for x, y in zip(first, second, strict=True))
    return red, green, blue


def lighter(shade: str, share: float) -> Colour:
    """`share` of a colour on white."""
    return mix(PAPER, shade, share)


def colour(offset: int, reach: int) -> Colour:
    """Blue for the past, yellow for the present, orange for the future; deeper the further away."""
    if offset == 0:
        return matplotlib.colors.to_rgb(NOW)
    near, far = PAST if offset < 0 else FUTURE
    return mix(near, far, (abs(offset) - 1) / max(reach - 1, 1) * 0.85)


def ink_on(fill: Colour) -> str:
    """Dark or white letters, whichever reads better on the fill."""
    red, green, blue = fill
    return INK if 0.299 * red + 0.587 * green + 0.114 * blue > 0.56 else "white"


def signed(offset: int) -> str:
    """An offset with its sign, as it is printed in a cell."""
    return f"{offset:+d}".replace("-", "−") if offset else "0"


class Picture:
    """A figure in cell units: x to the right, y downwards, one cell = 1 x 1."""

    def __init__(self, width: float, height: float, reach: int, num_queries: int, scale: float = 0.5) -> None:
        self.figure: Figure = plt.figure(figsize=(width * scale, height * scale), facecolor=PAPER)
        self.axes: Axes = self.figure.add_axes((0, 0, 1, 1))
        self.axes.set_xlim(0, width)
        self.axes.set_ylim(height, 0)
        self.axes.set_aspect("equal")
        self.axes.axis("off")
        self.reach, self.num_queries, self.points = reach, num_queries, scale * 72

    def text(self, x: float, y: float, text: str, size: float = 0.36, **options) -> None:
        """Letters `size` cells high, centred unless told otherwise."""
        settings = {"ha": "center", "va": "center", "color": INK, "zorder": 5} | options
        self.axes.text(x, y, text, fontsize=size * self.points, **settings)

    def lines(self, x: float, y: float, text: list[str], height: float = 0.56, **options) -> None:
        """Lines of text under one another, left-aligned unless told otherwise."""
        for n, line in enumerate(text):
            self.text(x, y + n * height, line, **({"size": 0.4, "ha": "left", "color": FAINT} | options))

    def box(self, x: float, y: float, width: float, height: float, fill: Colour | str, **options) -> None:
        """A filled rectangle with a thin edge."""
        settings = {"facecolor": fill, "edgecolor": PAPER, "linewidth": 0.8} | options
        self.axes.add_patch(Rectangle((x, y), width, height, **settings))

    def cell(self, x: float, y: float, value: float, row: int | None = None) -> None:
        """One product at the place (x, y): its offset large, its query small; struck through where row != query."""
        origin = decode(value)
        margin = (1 - CELL) / 2
        box = {"boxstyle": "round,pad=0,rounding_size=0.12", "linewidth": 0}
        corner = (x + margin, y + margin)
        if origin is None:
            self.axes.add_patch(
                FancyBboxPatch(corner, CELL, CELL, facecolor="#eef1f4", edgecolor="#c3ccd4", hatch="////", **box)
            )
            return
        query, m = origin
        offset = m - (self.num_queries - 1)
        wrong = row is not None and row != query
        fill = colour(offset, self.reach)
        letters = FAINT if wrong else ink_on(fill)
        self.axes.add_patch(FancyBboxPatch(corner, CELL, CELL, facecolor=(*fill, 0.22 if wrong else 1.0), **box))
        self.text(x + 0.5, y + 0.44, signed(offset), 0.4, color=letters, weight="bold")
        self.text(x + 0.5, y + 0.78, f"q{query}", 0.22, color=letters)
        if wrong:
            self.axes.plot([x + 0.14, x + 0.86], [y + 0.86, y + 0.14], color=FAINT, linewidth=0.06 * self.points)

    def grid(self, x: float, y: float, values: Tensor, check_rows: bool = False) -> None:
        """A matrix of products; with check_rows a product of another query than its row's is struck through."""
        for i, line in enumerate(values.tolist()):
            for j, value in enumerate(line):
                self.cell(x + j, y + i, value, i if check_rows else None)

    def title(self, x: float, y: float, heading: str, note: str = "") -> None:
        """What a matrix is, above it, left-aligned, with its shape or recipe in a second line."""
        self.text(x, y, heading, 0.38, ha="left", weight="bold")
        self.text(x, y + 0.56, note, 0.31, ha="left", color=FAINT)

    def row_names(self, x: float, y: float, names: list[str]) -> None:
        """A name to the left of each row."""
        for i, name in enumerate(names):
            self.text(x - 0.18, y + i + 0.5, name, 0.3, ha="right", color=FAINT)

    def column_names(self, x: float, y: float, names: list[str]) -> None:
        """A name under each column; y is the lower edge of the matrix."""
        for j, name in enumerate(names):
            self.text(x + j + 0.5, y + 0.3, name, 0.28, color=FAINT)

    def arrow(self, start: tuple[float, float], end: tuple[float, float], label: str = "", bend: float = 0.0) -> None:
        """An arrow with its label above the middle."""
        self.axes.add_patch(
            FancyArrowPatch(
                start, end, arrowstyle="-|>", mutation_scale=0.4 * self.points, color=INK, linewidth=1.3,
                connectionstyle=f"arc3,rad={bend}",
            )
        )  # fmt: skip
        self.text((start[0] + end[0]) / 2, start[1] - 0.34, label, 0.28)

    def outline(self, x: float, y: float, width: float, height: float, **options) -> None:
        """A frame around cells."""
        settings = {"fill": False, "edgecolor": INK, "linewidth": 1.4, "joinstyle": "round"} | options
        self.axes.add_patch(Rectangle((x, y), width, height, **settings))

    def save(self, path: Path) -> None:
        """Write it as SVG, the same bytes every time."""
        with matplotlib.rc_context({"svg.hashsalt": path.name, "svg.fonttype": "path"}):
            self.figure.savefig(path, metadata={"Date": None})
        plt.close(self.figure)
