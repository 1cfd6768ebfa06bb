"""Draw the pictures of docs/native.md on its units of work: who meets which tiles in which order, and what is added up.

    python docs/figures/draw_units.py [FOLDER]      (default: the folder of this file)

What a unit meets follows from the kernels' arithmetic, repeated here line by line; a visible pair that no tile meets,
or two do, would stop the script.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Iterable, Iterator
from itertools import chain, pairwise
from pathlib import Path
from typing import NamedTuple

from canvas import FAINT, INK, NOW, PAPER, Colour, Picture, ink_on, lighter
from kernel_sizes import BACKWARD_BLOCKS, CHUNK, FORWARD_BLOCKS, MOST_COPIED, PANEL, ROWS, SLOTS
from matplotlib.patches import Polygon

BLUE, GREY = "#1f6fb2", "#eef1f4"
PART_COLOURS = [lighter(shade, 1.0) for shade in (BLUE, NOW, "#d1602c", FAINT)]
LENGTH = 2304
"""Of the walks: whole blocks of queries and keys in both passes."""
UNLIMITED = 10**9
"""A limit beyond every offset."""


class Limits(NamedTuple):
    """LENGTH queries and keys that begin together, and the offsets that they see."""

    lowest: int
    highest: int

    def first_key(self, i: int) -> int:
        """The first key that query i sees by its offset."""
        return min(max(self.lowest + i, 0), LENGTH)

    def end_key(self, i: int, rows: int) -> int:
        """The end of the keys that any of `rows` queries from i on sees."""
        return min(max(self.highest + i + rows, 0), LENGTH)


class Tile(NamedTuple):
    """A block of queries with a block of keys, and for each group of ROWS queries the panels of keys that it meets."""

    i0: int
    j0: int
    groups: list[tuple[int, int, int]]  # (first query, first key, end of the keys)


# --- who meets what ---


def met(limits: Limits, i0: int, count: int, j0: int, columns: int) -> Tile:
    """The groups of a tile: both passes leave out the panels of keys that none of a group's queries sees."""
    groups = []
    for i in range(i0, i0 + count, ROWS):
        begin = max(limits.first_key(i) - j0, 0)
        stop = min(limits.end_key(i, ROWS) - j0, columns)
        if begin < stop:
            groups.append((i, j0 + begin // PANEL * PANEL, j0 + math.ceil(stop / PANEL) * PANEL))
    return Tile(i0, j0, groups)


def forward_units(limits: Limits) -> Iterator[list[Tile]]:
    """The units of one head in their order, each with the tiles that it meets: Forward::run and block_of_queries."""
    queries, keys = FORWARD_BLOCKS
    blocks = LENGTH // queries
    for unit in range(blocks):
        i0 = (blocks - 1 - unit) * queries
        first, end = limits.first_key(i0) // PANEL * PANEL, limits.end_key(i0, queries)
        yield [met(limits, i0, queries, j0, min(keys, end - j0)) for j0 in range(first, end, keys)]


def backward_tiles(limits: Limits, part: int, parts: int) -> Iterator[list[Tile]]:
    """A part's blocks of keys of one head, each with the tiles that it meets: Backward::key_head."""
    queries, keys = BACKWARD_BLOCKS
    for j0 in range(part * keys, LENGTH, parts * keys):
        first = max(0, j0 - limits.highest)
        end = min(LENGTH, j0 + keys - limits.lowest)
        yield [met(limits, i0, min(queries, LENGTH - i0), j0, keys) for i0 in range(first // ROWS * ROWS, end, queries)]


def assert_every_pair_is_met_once(limits: Limits, tiles: Iterable[Tile]) -> None:
    """The tiles of a group lie side by side, and reach over all keys that any of its queries sees."""
    met_by: dict[int, list[tuple[int, int]]] = {i: [] for i in range(0, LENGTH, ROWS)}
    for tile in tiles:
        for i, begin, end in tile.groups:
            met_by[i].append((begin, end))
    for i, spans in met_by.items():
        spans.sort()
        assert all(one[1] == other[0] for one, other in pairwise(spans)), i
        assert spans[0][0] <= limits.first_key(i) and limits.end_key(i, ROWS) <= spans[-1][1], i


def parts_of(heads: int, width: int) -> tuple[int, int]:
    """Slots and parts of so many key heads that share a table: Backward::slots_of and parts_of."""
    slots = min(heads, SLOTS)
    most = 1 + MOST_COPIED // (heads * LENGTH * width)
    return slots, max(1, min(SLOTS // slots, math.ceil(LENGTH / BACKWARD_BLOCKS[1]), most))


# --- the walks ---


def draw_tile(picture: Picture, x: float, y: float, scale: float, tile: Tile, fill: Colour | str) -> None:
    """What the tile's groups meet, as one shape."""
    right = [(end, i + n) for i, _, end in tile.groups for n in (0, ROWS)]
    left = [(begin, i + n) for i, begin, _ in reversed(tile.groups) for n in (ROWS, 0)]
    corners = [(x + min(j, LENGTH) * scale, y + i * scale) for j, i in right + left]
    picture.axes.add_patch(Polygon(corners, facecolor=fill, edgecolor=PAPER, linewidth=0.9, joinstyle="round"))


def frame(picture: Picture, x: float, y: float, scale: float, heading: str, below: float = 0.4) -> None:
    """All pairs of queries and keys."""
    side = LENGTH * scale
    picture.box(x, y, side, side, GREY, linewidth=0)
    picture.text(x, y - 0.45, heading, 0.46, ha="left", weight="bold")
    picture.text(x + side, y + side + below, "keys →", 0.38, ha="right", color=FAINT)


def middle(tile: Tile) -> tuple[float, float]:
    """Where a tile's number stands: the middle of what it meets, keys and queries."""
    weight = sum(end - begin for _, begin, end in tile.groups)
    keys = sum((end - begin) * (begin + end) / 2 for _, begin, end in tile.groups) / weight
    return keys, sum((end - begin) * (i + ROWS / 2) for i, begin, end in tile.groups) / weight


def draw_forward(path: Path) -> None:
    """Under causality, and under a window with it: the units of a head, and the tiles that each meets."""
    picture = Picture(20.4, 10.9, 1, 1, scale=0.55)
    queries, keys = FORWARD_BLOCKS
    side, window = 8.6, 640
    scale = side / LENGTH
    walks = {
        "causal": (1.4, Limits(-UNLIMITED, 0)),
        f"causal, window of {window} keys": (11.4, Limits(1 - window, 0)),
    }
    for heading, (x, limits) in walks.items():
        frame(picture, x, 1.3, scale, heading)
        units = list(forward_units(limits))
        assert_every_pair_is_met_once(limits, chain.from_iterable(units))
        for unit, tiles in enumerate(units):
            for number, tile in enumerate(tiles):
                fill = lighter(BLUE, 0.16 + 0.4 * number * keys / LENGTH)
                draw_tile(picture, x, 1.3, scale, tile, fill)
                j, i = middle(tile)
                picture.text(x + j * scale, 1.3 + i * scale, str(number + 1), 0.38)
            y = 1.3 + (tiles[0].i0 + queries / 2) * scale
            picture.text(x - 0.15, y, str(unit + 1), 0.38, ha="right", weight="bold")
        picture.text(
            x - 0.95, 1.3 + side / 2, f"{queries} queries per unit; unit 1 comes first", 0.4, rotation=90, color=FAINT
        )
    picture.save(path)


def draw_backward(path: Path) -> None:
    """Two key heads that share a table, under causality: parts of slots, their buffers and the sum."""
    picture = Picture(20.4, 16.2, 1, 1, scale=0.55)
    queries, keys = BACKWARD_BLOCKS
    heads, side, top = 2, 8.6, 1.3
    slots, parts = parts_of(heads, 64)
    scale, limits = side / LENGTH, Limits(-UNLIMITED, 0)
    assert slots == heads and parts == len(PART_COLOURS)
    walks = [list(backward_tiles(limits, part, parts)) for part in range(parts)]
    assert_every_pair_is_met_once(limits, chain.from_iterable(chain.from_iterable(walks)))
    for slot in range(slots):
        x = 1.0 + slot * 10.2
        frame(picture, x, top, scale, f"key head {slot + 1}: slot {slot + 1}", 0.95)
        picture.text(x - 0.3, top + side / 2, "queries", 0.38, rotation=90, color=FAINT)
        for part, walk in enumerate(walks):
            fill = PART_COLOURS[part]
            for tiles in walk:
                for tile in tiles:
                    draw_tile(picture, x, top, scale, tile, fill)
                middle, begin = x + (tiles[0].j0 + keys / 2) * scale, tiles[0].i0 + 2.2 * queries
                picture.text(middle, top + side + 0.38, f"part {part + 1}", 0.36)
                picture.axes.annotate(
                    "", (middle, top + (LENGTH - 0.4 * queries) * scale), (middle, top + begin * scale),
                    arrowprops={"arrowstyle": "-|>", "color": ink_on(fill), "linewidth": 1.4},
                )  # fmt: skip
    draw_sums(picture, 1.0, 12.0, slots, parts)
    picture.save(path)


def draw_sums(picture: Picture, x: float, y: float, slots: int, parts: int) -> None:
    """The buffers of a table's gradient in the order in which they lie and are added: TableSums."""
    width, gap = 1.62, 0.62
    picture.text(
        x, y, "A part of a slot is a unit of work. Each has a buffer for the gradient of the table:", 0.4, ha="left"
    )
    for n in range(parts * slots):
        part, slot = divmod(n, slots)
        left = x + n * (width + gap)
        picture.box(left, y + 0.5, width, 1.3, PART_COLOURS[part])
        ink = ink_on(PART_COLOURS[part])
        picture.text(left + width / 2, y + 0.92, f"part {part + 1}", 0.38, color=ink, weight="bold")
        picture.text(left + width / 2, y + 1.42, f"slot {slot + 1}", 0.38, color=ink)
        picture.text(left + width + gap / 2, y + 1.15, "+" if n < parts * slots - 1 else "=", 0.5)
    picture.text(x + parts * slots * (width + gap) + 0.1, y + 1.15, "dRK", 0.46, ha="left", weight="bold")
    picture.lines(
        x, y + 2.5,
        [
            "added from left to right, whichever thread filled them, and whenever.",
            f"dq: what the {parts} parts add, from the first to the last.",
            "dk, dv: a block of keys belongs to one unit.",
        ],
        0.62, color=INK,
    )  # fmt: skip


# --- few queries ---


def draw_few(path: Path) -> None:
    """Keys in chunks, what each chunk leaves for a row, and the merge: Few."""
    picture = Picture(20.4, 11.6, 1, 1, scale=0.55)
    batch, keys, x, wide, top = 2, 900, 3.0, 16.8, 1.6
    chunks = math.ceil(keys / CHUNK)
    scale = wide / keys
    begins = [(chunk * CHUNK, min((chunk + 1) * CHUNK, keys)) for chunk in range(chunks)]
    picture.text(0.5, 0.5, f"{keys} keys of two batch elements, {CHUNK} at a time", 0.46, ha="left", weight="bold")
    for unit in range(batch * chunks):
        b, chunk = unit % batch, unit // batch
        begin, end = begins[chunk]
        y = top + 1.35 * b
        fill = PART_COLOURS[chunk]
        picture.box(x + begin * scale, y, (end - begin) * scale, 1.1, fill, linewidth=2.5)
        picture.text(
            x + (begin + end) / 2 * scale, y + 0.55, f"unit {unit + 1}", 0.42, color=ink_on(fill), weight="bold"
        )
    for b in range(batch):
        picture.text(x - 0.2, top + 1.35 * b + 0.55, f"element {b + 1}", 0.4, ha="right", color=FAINT)
    y = top + 1.35 * batch + 1.1
    for chunk, (begin, end) in enumerate(begins):
        at, c = x + (begin + end) / 2 * scale, chunk + 1
        picture.arrow((at, y - 0.95), (at, y + 0.2))
        picture.text(at, y + 0.75, rf"$m_{c}$  $\ell_{c}$  $o_{c}$", 0.5)
    picture.lines(0.5, y + 2.0, ["Each chunk leaves for every row, a query of a head:"], color=INK)
    terms = r"$m=\max\,S$", r"$\ell=\sum\,e^{S-m}$", r"$o=\sum\,e^{S-m}\,(v+\mathrm{RV})$"
    merged = r"$M=\max_c\,m_c$", r"$L=\sum_c\,e^{m_c-M}\,\ell_c$", r"$O=\sum_c\,e^{m_c-M}\,o_c\,/\,L$"
    for column, (term, sum_of_chunks) in enumerate(zip(terms, merged, strict=True)):
        picture.text(1.2 + 6.3 * column, y + 3.0, term, 0.56, ha="left")
        picture.text(1.2 + 6.3 * column, y + 5.0, sum_of_chunks, 0.56, ha="left")
    picture.lines(0.5, y + 4.0, ["They are merged in their order, c = 1, 2, ...:"], color=INK)
    picture.save(path)


PICTURES = {"units_forward.svg": draw_forward, "units_backward.svg": draw_backward, "units_few.svg": draw_few}


def main(folder: Path) -> None:
    """Draw every picture into `folder`."""
    for name, draw in PICTURES.items():
        draw(folder / name)


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).parent)
