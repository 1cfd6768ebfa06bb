"""Draw the picture of docs/axes.md: a query of a grid, the offsets of its neighbours, and the rows that they read.

    python docs/figures/draw_axes.py [FOLDER]      (default: the folder of this file)

The offsets are those of `relattn.grid`, and the numbers of the rows those of `GridBias`: a cell that read another row
than its offsets' would stop the script.
"""

from __future__ import annotations

import sys
from pathlib import Path

import torch
from canvas import FAINT, Colour, Picture, colour, ink_on, signed

import relattn

HEIGHT, WIDTH = 4, 5
QUERY_Y, QUERY_X = 1, 3
REACH = WIDTH - 1
PALE = 0.3
"""How much is left of the colour of an offset that the query does not read."""


def offsets_of_query() -> list[list[tuple[int, int]]]:
    """(dy, dx) of the query and each key of the grid, as the library counts them."""
    where, device = relattn.grid(HEIGHT, WIDTH), torch.device("cpu")
    y, x = (where[axis].expand(HEIGHT * WIDTH, device).reshape(HEIGHT, WIDTH).tolist() for axis in ("y", "x"))
    query_y, query_x = y[QUERY_Y][QUERY_X], x[QUERY_Y][QUERY_X]
    return [[(y[i][j] - query_y, x[i][j] - query_x) for j in range(WIDTH)] for i in range(HEIGHT)]


def row_of(dy: int, dx: int) -> int:
    """The row of GridBias' table for a pair of offsets."""
    return (HEIGHT - 1 - dy) * (2 * WIDTH - 1) + (WIDTH - 1 - dx)


def check_rows(offsets: list[list[tuple[int, int]]]) -> None:
    """The rows that the query reads from a table whose entries are their own numbers are those drawn."""
    encoding = relattn.GridBias((HEIGHT, WIDTH), 1)
    with torch.no_grad():
        encoding.bias.copy_(torch.arange(len(encoding.bias)).unsqueeze(1))
        zeros, where = torch.zeros(1, 1, HEIGHT * WIDTH, 1), relattn.grid(HEIGHT, WIDTH)
        weights = relattn.attention_weights(
            zeros.double(), zeros.double(), zeros.double(), encoding=encoding.double(), query_position=where,
            key_position=where,
        )  # fmt: skip
    scores = weights[0, 0, QUERY_Y * WIDTH + QUERY_X].log().reshape(HEIGHT, WIDTH)
    read = (scores - scores[QUERY_Y, QUERY_X]).round().int() + row_of(0, 0)
    assert read.tolist() == [[row_of(dy, dx) for dy, dx in line] for line in offsets]


def shade(offset: int, faint: bool) -> Colour:
    """The colour of an offset on any axis; pale where the query does not read it."""
    red, green, blue = (1 - (PALE if faint else 1) * (1 - part) for part in colour(offset, REACH))
    return red, green, blue


def draw_offset(picture: Picture, x: float, y: float, width: float, height: float, offset: int, faint: bool) -> None:
    """One offset in a box of its colour."""
    fill = shade(offset, faint)
    picture.box(x, y, width, height, fill)
    letters = FAINT if faint else ink_on(fill)
    picture.text(x + width / 2, y + height / 2, signed(offset), 0.34, color=letters, weight="bold")


def draw_pair(picture: Picture, x: float, y: float, dy: int, dx: int, faint: bool = False) -> None:
    """A cell of both offsets: dy in the upper half, dx in the lower."""
    draw_offset(picture, x + 0.04, y + 0.04, 0.92, 0.46, dy, faint)
    draw_offset(picture, x + 0.04, y + 0.5, 0.92, 0.46, dx, faint)


def draw_grid(picture: Picture, left: float, top: float, offsets: list[list[tuple[int, int]]]) -> None:
    """The grid, the query framed."""
    picture.text(left, 0.6, "One query of a grid", 0.46, ha="left", weight="bold")
    picture.text(left, 1.2, "in each key: dy above, dx below", 0.38, ha="left", color=FAINT)
    for i, line in enumerate(offsets):
        picture.text(left - 0.2, top + i + 0.5, f"y={i}", 0.34, ha="right", color=FAINT)
        for j, (dy, dx) in enumerate(line):
            draw_pair(picture, left + j, top + i, dy, dx)
    for j in range(WIDTH):
        picture.text(left + j + 0.5, top + HEIGHT + 0.3, f"x={j}", 0.34, color=FAINT)
    picture.outline(left + QUERY_X, top + QUERY_Y, 1, 1, linewidth=3.0)
    picture.lines(
        left, top + HEIGHT + 1.1,
        ["Framed: the query.", "On each axis", "d = key − query:", "blue before it,", "yellow level with it,",
         "orange after it."],
    )  # fmt: skip


def draw_decomposed(picture: Picture, left: float, top: float) -> None:
    """A table for dy and one for dx, what the query reads framed."""
    picture.text(left, 0.6, "Decomposed: two tables", 0.46, ha="left", weight="bold")
    picture.text(left, 1.2, f"{2 * HEIGHT - 1} + {2 * WIDTH - 1} rows", 0.38, ha="left", color=FAINT)
    column, line = left + 0.7, top + 2 * HEIGHT - 0.5
    for n in range(2 * HEIGHT - 1):
        dy = n - (HEIGHT - 1)
        draw_offset(picture, column + 0.04, top + n + 0.04, 0.92, 0.92, dy, not 0 <= QUERY_Y + dy < HEIGHT)
    picture.text(column - 0.2, top + HEIGHT - 0.5, "dy", 0.38, ha="right", color=FAINT)
    picture.outline(column, top + HEIGHT - 1 - QUERY_Y, 1, HEIGHT, linewidth=2.2)
    for n in range(2 * WIDTH - 1):
        dx = n - (WIDTH - 1)
        draw_offset(picture, column + n * 0.8 + 0.03, line + 0.04, 0.74, 0.92, dx, not 0 <= QUERY_X + dx < WIDTH)
    picture.text(column - 0.2, line + 0.5, "dx", 0.38, ha="right", color=FAINT)
    picture.outline(column + (WIDTH - 1 - QUERY_X) * 0.8, line, WIDTH * 0.8, 1, linewidth=2.2)
    picture.lines(
        column + 1.5, top + 1.3,
        ["A pair gets the row", "of its dy and the row", "of its dx, added.", "", "Framed: what this", "query reads."],
    )  # fmt: skip


def draw_joint(picture: Picture, left: float, top: float, offsets: list[list[tuple[int, int]]]) -> None:
    """A table of both offsets, what the query reads framed: the grid once more."""
    rows = (2 * HEIGHT - 1) * (2 * WIDTH - 1)
    picture.text(left, 0.6, "Joint: one table", 0.46, ha="left", weight="bold")
    note = f"{2 * HEIGHT - 1} × {2 * WIDTH - 1} = {rows} rows, one for each (dy, dx)"
    picture.text(left, 1.2, note, 0.38, ha="left", color=FAINT)
    met = {pair for line in offsets for pair in line}
    for n in range(2 * HEIGHT - 1):
        for m in range(2 * WIDTH - 1):
            pair = n - (HEIGHT - 1), m - (WIDTH - 1)
            draw_pair(picture, left + m, top + n, *pair, faint=pair not in met)
    picture.outline(left + WIDTH - 1 - QUERY_X, top + HEIGHT - 1 - QUERY_Y, WIDTH, HEIGHT, linewidth=2.2)
    assert row_of(HEIGHT - 1, WIDTH - 1) == 0 and row_of(1 - HEIGHT, 1 - WIDTH) == rows - 1
    low = top + 2 * HEIGHT - 1
    picture.text(left + 2 * WIDTH - 1, low + 0.35, "row 0 is this corner", 0.38, ha="right", color=FAINT)
    picture.lines(left, low + 1.0, ["Framed: what this query reads,", "the grid once more."])


def draw_axes_of_a_grid(path: Path) -> None:
    """The grid, and both kinds of tables beside it."""
    offsets = offsets_of_query()
    check_rows(offsets)
    picture = Picture(27.2, 10.9, REACH, 1, scale=0.5)
    draw_grid(picture, 1.1, 1.8, offsets)
    draw_decomposed(picture, 8.2, 1.8)
    draw_joint(picture, 17.7, 1.8, offsets)
    picture.save(path)


PICTURES = {"axes_grid.svg": draw_axes_of_a_grid}


def main(folder: Path) -> None:
    """Draw every picture into `folder`."""
    for name, draw in PICTURES.items():
        draw(folder / name)


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).parent)
