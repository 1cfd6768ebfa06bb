"""Draw the pictures of docs/skew.md: where every product q_i . RK[d] lies before, between and after the arrangements.

    PYTHONPATH=. python docs/figures/draw_skew.py [FOLDER]      (default: the folder of this file)

No cell is written by hand. The queries and rows are chosen so that a product tells which query and which row made it,
100 * i + (m + 1); the functions of measure.peers.arrangements arrange the products, and the canvas decodes what comes
out. Zero is padding.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

import torch
import torch.nn.functional as F
from canvas import FAINT, INK, PAPER, Colour, Picture, colour, signed
from matplotlib.patches import Rectangle
from torch import Tensor

from measure.peers import arrangements


def coded_queries(count: int) -> Tensor:
    """q_i = (i, 1), so that q_i . RK_m tells i and m apart."""
    index = torch.arange(float(count))
    return torch.stack([index, torch.ones(count)], dim=-1)[None, None]


def coded_rows(count: int) -> Tensor:
    """RK_m = (100, m + 1)."""
    index = torch.arange(float(count))
    return torch.stack([torch.full((count,), 100.0), index + 1], dim=-1)[None]


def products(num_queries: int, num_rows: int) -> Tensor:
    """Q @ RK^T of the coded queries and rows, [num_queries, num_rows]."""
    return (coded_queries(num_queries) @ coded_rows(num_rows).transpose(-1, -2))[0, 0]


def arranged(way: Callable[..., Tensor], num_queries: int, num_rows: int, num_keys: int) -> Tensor:
    """What one of these functions makes of the same products, [num_queries, num_keys]."""
    return way(coded_queries(num_queries), coded_rows(num_rows), num_keys)[0, 0]


def names(prefix: str, count: int) -> list[str]:
    """q0, q1, ..."""
    return [f"{prefix}{i}" for i in range(count)]


def draw_problem(path: Path) -> None:
    """Columns of Q @ RK^T beside the diagonals of S_rel."""
    num_queries, num_keys = 4, 5
    num_rows = num_queries + num_keys - 1
    picture = Picture(19.2, 6.5, num_keys - 1, num_queries)
    picture.title(1.0, 0.5, "P = Q @ RKᵀ", "one matrix product: every query with every row of the table")
    picture.grid(1.0, 1.5, products(num_queries, num_rows))
    picture.row_names(1.0, 1.5, names("q", num_queries))
    picture.column_names(1.0, 1.5 + num_queries, names("row ", num_rows))
    picture.arrow((9.5, 3.5), (12.3, 3.5), "columns become")
    picture.text(10.9, 3.84, "diagonals", 0.28)
    picture.title(13.2, 0.5, "S_rel", "S_rel[i, j] = qᵢ · RK[j − i]")
    picture.grid(13.2, 1.5, arranged(arrangements.strided, num_queries, num_rows, num_keys), check_rows=True)
    picture.row_names(13.2, 1.5, names("q", num_queries))
    picture.column_names(13.2, 1.5 + num_queries, names("k", num_keys))
    picture.save(path)


def draw_gather(path: Path) -> None:
    """The table, a row of it written out for every pair, and the products."""
    num_queries, num_keys, width = 3, 4, 3
    num_rows = num_queries + num_keys - 1
    picture = Picture(25.0, 8.3, num_keys - 1, num_queries)
    picture.title(1.9, 0.5, "RK", f"[R, D] = [{num_rows}, {width}]")
    shades = [colour(m - (num_queries - 1), num_keys - 1) for m in range(num_rows)]
    for m, shade in enumerate(shades):
        draw_vector(picture, 1.9, 1.5 + m, width, shade)
    picture.row_names(1.9, 1.5, [f"RK[{signed(m - (num_queries - 1))}]" for m in range(num_rows)])
    picture.arrow((5.3, 4.5), (8.1, 4.5), "copy a row")
    picture.text(6.7, 4.84, "for every pair", 0.28)
    picture.title(9.0, 0.5, "RK[j − i] of every pair", f"[Lq, Lk, D] = [{num_queries}, {num_keys}, {width}]")
    for i in range(num_queries):
        for j in range(num_keys):
            draw_vector(picture, 9.0 + 2.15 * j, 3.0 + i, width, shades[j - i + num_queries - 1], 0.62)
    picture.row_names(9.0, 3.0, names("q", num_queries))
    for j in range(num_keys):
        picture.text(9.0 + 2.15 * j + 0.93, 3.0 + num_queries + 0.3, f"k{j}", 0.28, color=FAINT)
    picture.arrow((17.7, 4.5), (19.5, 4.5), "dot with qᵢ")
    picture.title(20.5, 0.5, "S_rel", f"[Lq, Lk] = [{num_queries}, {num_keys}]")
    picture.grid(20.5, 3.0, arranged(arrangements.gather, num_queries, num_rows, num_keys), check_rows=True)
    picture.row_names(20.5, 3.0, names("q", num_queries))
    picture.column_names(20.5, 3.0 + num_queries, names("k", num_keys))
    picture.save(path)


def draw_vector(picture: Picture, x: float, y: float, width: int, shade: Colour, size: float = 0.92) -> None:
    """A row of the table as `width` little boxes."""
    for feature in range(width):
        corner = (x + feature * size + 0.04, y + 0.12)
        picture.axes.add_patch(Rectangle(corner, size - 0.06, 0.76, facecolor=shade, linewidth=0))


def draw_pad_reshape(path: Path) -> None:
    """Pad a column, reshape, drop a row."""
    length = 4
    start = products(length, length)
    padded = F.pad(start, (1, 0))
    reshaped = padded.reshape(length + 1, length)
    picture = Picture(26.6, 7.6, length - 1, length)
    columns = (1.0, 7.8, 15.4, 22.0)
    top = 1.5
    picture.title(columns[0], 0.5, "P = Q @ RKᵀ", f"[L, L] = [{length}, {length}]")
    picture.grid(columns[0], top, start)
    picture.row_names(columns[0], top, names("q", length))
    picture.column_names(columns[0], top + length, names("row ", length))
    picture.arrow((5.2, 3.5), (7.5, 3.5), "pad a column")
    picture.title(columns[1], 0.5, "padded", f"[L, L + 1] = [{length}, {length + 1}]")
    picture.grid(columns[1], top, padded)
    picture.arrow((13.0, 3.5), (15.1, 3.5), "reshape")
    picture.title(columns[2], 0.5, "the same memory, refilled", f"[L + 1, L] = [{length + 1}, {length}]")
    picture.grid(columns[2], top, reshaped)
    picture.arrow((19.6, 3.5), (21.4, 3.5), "drop row 0")
    picture.title(columns[3], 0.5, "S_rel", "right up to the diagonal")
    picture.grid(columns[3], top, arranged(arrangements.pad_reshape, length, length, length), check_rows=True)
    picture.row_names(columns[3], top, names("q", length))
    picture.column_names(columns[3], top + length, names("k", length))
    picture.outline(columns[2], top, length, 1, linestyle=(0, (3, 2)), edgecolor=FAINT)
    picture.text(
        13.3, 7.1, "struck through: products of the next query, wrapped around; the causal mask must hide them", 0.31,
        color=FAINT,
    )  # fmt: skip
    picture.save(path)


def draw_diagonals(path: Path) -> None:
    """Flip, take diagonals, stack them as columns, flip back."""
    num_queries, num_keys = 3, 4
    num_rows = num_queries + num_keys - 1
    start = products(num_queries, num_rows)
    flipped = start.flip(0)
    stacked = torch.stack([flipped.diagonal(j) for j in range(num_keys)])
    picture = Picture(27.8, 6.7, num_keys - 1, num_queries)
    columns, top = (1.0, 9.6, 17.9, 23.4), 1.5
    picture.title(columns[0], 0.5, "P = Q @ RKᵀ", f"[Lq, R] = [{num_queries}, {num_rows}]")
    picture.grid(columns[0], top, start)
    picture.row_names(columns[0], top, names("q", num_queries))
    picture.column_names(columns[0], top + num_queries, names("row ", num_rows))
    picture.arrow((7.3, 3.0), (9.1, 3.0), "flip rows")
    picture.title(columns[1], 0.5, "the last query first", "key j lies on diagonal j")
    picture.grid(columns[1], top, flipped)
    for j in range(num_keys):
        ends = (columns[1] + j + 0.1, columns[1] + j + num_queries - 0.1), (top + 0.1, top + num_queries - 0.1)
        picture.axes.plot(*ends, color=PAPER, linewidth=4, alpha=0.8, solid_capstyle="round", zorder=3)
        picture.text(ends[0][1] + 0.22, top + num_queries + 0.3, f"j = {j}", 0.28, color=FAINT)
    picture.arrow((15.7, 3.0), (17.0, 3.0), "stack")
    picture.title(columns[2], 0.5, "diagonals", f"[Lk, Lq] = [{num_keys}, {num_queries}]")
    picture.grid(columns[2], top, stacked)
    picture.row_names(columns[2], top, names("k", num_keys))
    picture.column_names(columns[2], top + num_keys, names("q", num_queries)[::-1])
    picture.arrow((21.1, 3.0), (22.9, 3.0), "transpose,")
    picture.text(22.0, 3.34, "flip back", 0.28)
    picture.title(columns[3], 0.5, "S_rel", f"[Lq, Lk] = [{num_queries}, {num_keys}]")
    picture.grid(columns[3], top, arranged(arrangements.diagonals, num_queries, num_rows, num_keys), check_rows=True)
    picture.column_names(columns[3], top + num_queries, names("k", num_keys))
    picture.save(path)


def draw_strided(path: Path) -> None:
    """The products as they lie in memory, and the rows of S_rel as windows on them."""
    num_queries, num_keys = 3, 4
    num_rows = num_queries + num_keys - 1
    start = products(num_queries, num_rows)
    picture = Picture(20.6, 11.6, num_keys - 1, num_queries)
    left, line = 1.3, 8.0
    picture.title(left, 0.5, "P = Q @ RKᵀ", f"[Lq, R] = [{num_queries}, {num_rows}]; the frames: what S_rel reads")
    picture.grid(left, 1.5, start)
    picture.row_names(left, 1.5, names("q", num_queries))
    picture.column_names(left, 1.5 + num_queries, names("row ", num_rows))
    for i in range(num_queries):
        picture.outline(left + num_queries - 1 - i, 1.5 + i, num_keys, 1)
    picture.title(14.8, 0.5, "S_rel", "a view, no copy")
    picture.grid(14.8, 1.5, arranged(arrangements.strided, num_queries, num_rows, num_keys), check_rows=True)
    picture.row_names(14.8, 1.5, names("q", num_queries))
    picture.column_names(14.8, 1.5 + num_queries, names("k", num_keys))
    picture.arrow((8.2, 3.0), (13.8, 3.0), f"start {num_queries - 1}, row stride R − 1 = {num_rows - 1}")
    picture.title(left, line - 1.7, "memory", f"row i of S_rel: from (Lq − 1) + i (R − 1), Lk = {num_keys} long")
    picture.grid(left, line, start.reshape(1, -1))
    for i in range(num_queries):
        picture.text(left + i * num_rows + num_rows / 2, line - 0.3, f"row {i} of P", 0.28, color=FAINT)
        if i:
            picture.axes.plot([left + i * num_rows] * 2, [line - 0.45, line + 1.08], color=FAINT, linewidth=1)
        begin = left + num_queries - 1 + i * (num_rows - 1)
        picture.outline(begin, line, num_keys, 1)
        low = line + 1.35
        picture.axes.plot(
            [begin + 0.1, begin + 0.1, begin + num_keys - 0.1, begin + num_keys - 0.1],
            [low - 0.2, low, low, low - 0.2], color=INK, linewidth=1.2,
        )  # fmt: skip
        picture.text(begin + num_keys / 2, low + 0.38, f"row {i} of S_rel", 0.3)
        picture.text(
            begin + num_keys / 2, low + 0.88, f"from {num_queries - 1 + i * (num_rows - 1)}", 0.26, color=FAINT
        )
    picture.save(path)


PICTURES = {
    "skew_problem.svg": draw_problem,
    "skew_gather.svg": draw_gather,
    "skew_pad_reshape.svg": draw_pad_reshape,
    "skew_diagonals.svg": draw_diagonals,
    "skew_strided.svg": draw_strided,
}


def main(folder: Path) -> None:
    """Draw every picture into `folder`."""
    for name, draw in PICTURES.items():
        draw(folder / name)


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).parent)
