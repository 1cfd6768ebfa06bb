"""Draw the picture of docs/packed.md: which blocks of queries and keys are computed under packing and padding.

    python docs/figures/draw_visible_blocks.py [FOLDER]      (default: the folder of this file)

The blocks are those of `relattn.equation.visible_blocks`.
"""

from __future__ import annotations

import sys
from pathlib import Path

import torch
from canvas import FAINT, NOW, PAST, Picture
from torch import Tensor

from relattn.equation.mask import Mask
from relattn.equation.visible_blocks import EVERYTHING, LOOK, NOTHING, SIZE, Blocks
from relattn.positions.contiguous import ContiguousPositions
from relattn.positions.positions import Positions

BLOCKS = 8
LENGTH = BLOCKS * SIZE
FILL = {NOTHING: "#eef1f4", LOOK: NOW, EVERYTHING: PAST[1]}
SAID = {NOTHING: "nothing: left out", LOOK: "look at each pair", EVERYTHING: "everything: no look"}


def documents() -> Tensor:
    """Three of them in one row."""
    ids = torch.bucketize(torch.arange(LENGTH), torch.tensor([3 * SIZE - 1, 5 * SIZE + 20]))
    return ids[:, None] == ids


def padding() -> Tensor:
    """Keys up to the length of a sequence."""
    return (torch.arange(LENGTH) < 4 * SIZE + 30).expand(LENGTH, LENGTH)


def blocks_of(pairs: Tensor) -> list[list[int]]:
    """What each block has to see."""
    place = ContiguousPositions(0)
    mask = Mask(Positions(place, place, LENGTH, LENGTH, pairs.device), pairs=pairs[None, None].contiguous())
    found = Blocks.of(mask, has_bias=False).pairs
    assert found is not None
    return found[0, 0].tolist()


def draw_blocks(picture: Picture, left: float, top: float, title: str, pairs: Tensor) -> None:
    """The blocks of queries and keys, and the pairs that are visible as shares of them."""
    picture.text(left, 0.7, title, 0.46, ha="left", weight="bold")
    picture.text(left + BLOCKS / 2, top - 0.35, "keys", 0.36, color=FAINT)
    picture.text(left - 0.4, top + BLOCKS / 2, "queries", 0.36, color=FAINT, rotation=90)
    for i, line in enumerate(blocks_of(pairs)):
        for j, seen in enumerate(line):
            picture.box(left + j + 0.04, top + i + 0.04, 0.92, 0.92, FILL[seen])


def draw(folder: Path) -> None:
    """Write visible_blocks.svg."""
    picture = Picture(2 * BLOCKS + 4.2, BLOCKS + 3.4, 1, 1)
    draw_blocks(picture, 1.2, 1.8, "Three packed documents", documents())
    draw_blocks(picture, BLOCKS + 3.2, 1.8, "A padded sequence", padding())
    for n, (seen, said) in enumerate(SAID.items()):
        picture.box(1.2 + 6 * n, BLOCKS + 2.3, 0.7, 0.7, FILL[seen])
        picture.text(2.1 + 6 * n, BLOCKS + 2.65, said, 0.38, ha="left")
    picture.save(folder / "visible_blocks.svg")


if __name__ == "__main__":
    draw(Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).parent)
