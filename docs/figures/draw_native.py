"""Draw the pictures of docs/native.md on its arithmetic: the two products, and the skew there and back.

    python docs/figures/draw_native.py [FOLDER]      (default: the folder of this file)

The cells of the skew are numbers that tell which query and which offset made them, moved as the kernels move them: a
cell that landed beside its pair would stop the script.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import NamedTuple

from canvas import FAINT, INK, NOW, Picture, colour, ink_on, lighter, signed
from kernel_sizes import LANES, NN_ROWS, NN_VECTORS, PANEL, ROWS

BLUE, RED = "#1f6fb2", "#d1602c"
PADDING = 0


# --- the two products ---


class Product(NamedTuple):
    """A micro-kernel, in words: what it is, what it reads above and on the left, and what k runs over."""

    heading: str
    vectors_of: str
    numbers_of: list[str]
    k_over: str


def draw_products(path: Path) -> None:
    """What one step of nt and of nn reads, and the registers that it adds to."""
    picture = Picture(20.4, 11.0, 1, 1, scale=0.55)
    nt = Product("nt: dot products", f"a panel: {PANEL} keys, transposed", [f"{ROWS} queries"], "k: over the width")
    nn = Product(
        "nn: weighted sums of rows", f"rows as they lie: {NN_VECTORS * LANES} numbers",
        [f"{NN_ROWS} × n factors,", "at any strides"], "k: over n rows",
    )  # fmt: skip
    draw_step(picture, 0.5, ROWS, PANEL // LANES, nt)
    draw_step(picture, 10.8, NN_ROWS, NN_VECTORS, nn)
    picture.save(path)


def draw_step(picture: Picture, x: float, rows: int, vectors: int, words: Product) -> None:
    """Numbers on the left, vectors above, sums between them; step k is coloured, and one row of it deeper."""
    up, down, right, wide, deep, high = 1.9, 5.6, x + 3.3, 5.8, 4.6, 2.9
    step, steps, row = 3, 7, rows // 2
    cell, line, unit, vector = 2.4 / steps, high / steps, deep / rows, wide / vectors
    picture.text(x, 0.6, words.heading, 0.5, ha="left", weight="bold")
    picture.text(right, up - 0.4, words.vectors_of, 0.38, ha="left")
    for k in range(steps):
        for v in range(vectors):
            fill = BLUE if k == step else lighter(BLUE, 0.16)
            picture.box(right + v * vector, up + k * line, vector, line, fill)
    picture.text(right - 0.2, up + (step + 0.5) * line, "k", 0.42, ha="right", style="italic")
    picture.lines(x, down - 0.5 - 0.55 * len(words.numbers_of), words.numbers_of, 0.5, size=0.38, color=INK)
    for r in range(rows):
        for k in range(steps):
            fill = (RED if r == row else lighter(RED, 0.55)) if k == step else lighter(RED, 0.14)
            picture.box(x + k * cell, down + r * unit, cell, unit, fill)
        for v in range(vectors):
            fill = NOW if r == row else lighter(NOW, 0.35)
            picture.box(right + v * vector, down + r * unit, vector, unit, fill)
    for v in range(vectors):
        middle = right + (v + 0.5) * vector
        picture.text(middle, up + (step + 0.5) * line, "b", 0.36, color="white", va="center_baseline")
        picture.text(middle, down + (row + 0.5) * unit, "+= a b", 0.36, va="center_baseline")
    picture.text(x + (step + 0.5) * cell, down - 0.3, "k", 0.42, style="italic")
    at = down + (row + 0.5) * unit
    picture.axes.annotate(
        "", (right, at), (x + (step + 1) * cell, at),
        arrowprops={"arrowstyle": "-|>", "color": INK, "linewidth": 1.4},
    )  # fmt: skip
    picture.text((x + (step + 1) * cell + right) / 2, at - 0.25, "a", 0.36)
    picture.text(x, down + deep + 0.4, words.k_over, 0.38, ha="left", color=FAINT)
    picture.text(right + wide, down + deep + 0.4, f"{rows} × {vectors} registers", 0.38, ha="right", color=FAINT)


# --- the skew ---

QUERIES, KEYS, SMALL_PANEL = 3, 4, 4
"""Of the pictures of the skew, in place of ROWS, a block and PANEL."""
FIRST = -QUERIES
"""The table's first offset: one more than is needed at either end, where panels reach."""


def coded(query: int, offset: int) -> int:
    """The product of a query with the row of an offset, as a number that tells both."""
    return 100 * (query + 1) + 50 + offset


def draw_cell(picture: Picture, x: float, y: float, value: int) -> None:
    """The offset large, the query small, or hatched for a zero; the letters larger than the canvas's own."""
    if value == PADDING:
        picture.cell(x, y, PADDING)
        return
    query, offset = value // 100 - 1, value % 100 - 50
    fill = colour(offset, KEYS)
    picture.box(x + 0.04, y + 0.04, 0.92, 0.92, fill)
    picture.text(x + 0.5, y + 0.37, signed(offset), 0.42, color=ink_on(fill), weight="bold")
    picture.text(x + 0.5, y + 0.75, f"q{query}", 0.32, color=ink_on(fill))


def draw_cells(picture: Picture, x: float, y: float, cells: list[list[int]]) -> None:
    for i, line in enumerate(cells):
        for j, value in enumerate(line):
            draw_cell(picture, x + j, y + i, value)


def strip_of_a_block() -> tuple[list[list[int]], int]:
    """The strip that Strip::fill computes, panel by panel, and where the scores of pair (0, 0) start in it."""
    corner = -FIRST  # t of pair (row 0, column 0): the row of the table for offset 0
    first, last = (corner - (QUERIES - 1)) // SMALL_PANEL, (corner + KEYS - 1) // SMALL_PANEL
    columns = range(first * SMALL_PANEL, (last + 1) * SMALL_PANEL)
    return [[coded(i, FIRST + t) for t in columns] for i in range(QUERIES)], corner - first * SMALL_PANEL


def read(cells: list[list[int]], start: int, row_step: int, rows: int, columns: int) -> list[list[int]]:
    """Rows of numbers as they lie in memory, read from another start at another row step."""
    memory = [value for line in cells for value in line]
    return [[memory[start + r * row_step + c] for c in range(columns)] for r in range(rows)]


def draw_skew(path: Path) -> None:
    """A strip read at a row step one shorter is a tile; a tile with zeros read at one longer is a strip."""
    picture = Picture(19.0, 13.2, KEYS - 1, QUERIES, scale=0.55)
    strip, start = strip_of_a_block()
    width = len(strip[0])
    tile = read(strip, start, width - 1, QUERIES, KEYS)
    assert tile == [[coded(i, j - i) for j in range(KEYS)] for i in range(QUERIES)]
    left, right, top = 1.1, 13.6, 2.2
    picture.text(left, 0.5, "There: the strip of a group of queries", 0.46, ha="left", weight="bold")
    picture.text(right, 0.5, "what S starts from", 0.46, ha="left", weight="bold")
    picture.text(right, 1.15, "pair (i, j): offset j − i", 0.38, ha="left", color=FAINT)
    for p in range(width // SMALL_PANEL):
        picture.text(left + (p + 0.5) * SMALL_PANEL, 1.3, f"panel p{' + 1' * p}", 0.4, color=FAINT)
        edge = left + p * SMALL_PANEL + 0.1, left + (p + 1) * SMALL_PANEL - 0.1
        picture.axes.plot(edge, (1.75, 1.75), color=FAINT, linewidth=1.4)
    draw_cells(picture, left, top, strip)
    for i in range(QUERIES):
        picture.outline(left + start - i, top + i, KEYS, 1, linewidth=2.2)
    draw_cells(picture, right, top, tile)
    names_of_pairs(picture, left, right, top)
    for j in range(KEYS):
        picture.text(right + j + 0.5, top + QUERIES + 0.35, f"k{j}", 0.38, color=FAINT)
    picture.arrow((left + width + 0.3, top + 1.5), (right - 1.0, top + 1.5))
    between = (left + width + right - 0.7) / 2
    picture.lines(between, top + 0.35, ["read with", f"row step {width} − 1"], 0.5, ha="center", size=0.38, color=INK)
    picture.lines(
        left, top + QUERIES + 0.45,
        [f"A row has {width} numbers. Framed: what each query needs,", "one column further left for each query."],
    )  # fmt: skip

    beside = QUERIES - 1
    zeros = [PADDING] * beside
    padded = [[*zeros, *line, *zeros] for line in tile]
    width, offsets = len(padded[0]), range(-beside, KEYS)
    back = read(padded, 0, width + 1, QUERIES, len(offsets))
    assert all(
        back[i][n] == (coded(i, d) if 0 <= i + d < KEYS else PADDING)
        for i in range(QUERIES) for n, d in enumerate(offsets)
    )  # fmt: skip
    right, top = 12.1, 8.6
    picture.text(left, 7.3, "And back: dS, zeros on both sides", 0.46, ha="left", weight="bold")
    picture.text(right, 7.3, "a strip again, of dS", 0.46, ha="left", weight="bold")
    picture.text(right, 7.95, "a column for each offset", 0.38, ha="left", color=FAINT)
    draw_cells(picture, left, top, padded)
    for i in range(QUERIES):
        picture.outline(left + i, top + i, len(offsets), 1, linewidth=2.2)
    draw_cells(picture, right, top, back)
    names_of_pairs(picture, left, right, top)
    picture.arrow((left + width + 0.3, top + 1.5), (right - 1.0, top + 1.5))
    between = (left + width + right - 0.7) / 2
    picture.lines(between, top + 0.35, ["row step", f"{width} + 1"], 0.5, ha="center", size=0.38, color=INK)
    picture.lines(
        left,
        top + QUERIES + 0.45,
        [f"A row has {width} numbers. Framed: one column", "further right for each query."],
    )
    picture.lines(right, top + QUERIES + 0.45, ["dq  +=  strip · RK", "dRK  +=  stripᵀ · q"], color=INK)
    picture.save(path)


def names_of_pairs(picture: Picture, left: float, right: float, top: float) -> None:
    """The queries beside both matrices."""
    for x in (left, right):
        for i in range(QUERIES):
            picture.text(x - 0.2, top + i + 0.5, f"q{i}", 0.4, ha="right", color=FAINT)


PICTURES = {"native_products.svg": draw_products, "native_skew.svg": draw_skew}


def main(folder: Path) -> None:
    """Draw every picture into `folder`."""
    for name, draw in PICTURES.items():
        draw(folder / name)


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).parent)
