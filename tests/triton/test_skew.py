"""The rotations move every number to its place, and what a warp moves at a time lies in 32 banks of shared memory."""

import numpy as np
import pytest
import torch

triton = pytest.importorskip("triton")
tl = triton.language

from relattn.backends.triton.device.skew import (  # noqa: E402
    columns_from_pairs,
    diagonals_from_tiles,
    joined_from_pairs,
    pairs_from_columns,
    pairs_from_rows,
    shared_place,
    tiles_from_diagonals,
)
from tests.triton import everywhere  # noqa: E402

SOURCES = {
    "pairs from rows": lambda i, j, size: (i, (j - i - 1) % size, j <= i),
    "pairs from rows, across": lambda i, j, size: (i, (j - i - 1) % size, j <= i),
    "joined from pairs": lambda i, c, size: (i, (c + i + 1) % size, None),
    "pairs from columns": lambda i, j, size: ((j - i - 1) % size, j, j <= i),
    "columns from pairs": lambda c, j, size: ((j - c - 1) % size, j, c >= j),
    "diagonals from tiles": lambda i, c, size: (i, (i + c) % size, i + c < size),
    "tiles from diagonals": lambda i, n, size: (i, (n - i) % size, n >= i),
}
"""Of each rotation: which element comes to [row, column], and whether from, or into, the first of two tiles."""


@triton.jit
def rotated_kernel(into, WHICH: tl.constexpr, TILE: tl.constexpr, GROUPS: tl.constexpr):
    """A tile of its own places in shared memory, or several, rotated, from and into tiles that are told apart: 1 + the
    place in the first, -1 - the place in the second.
    """
    row, column = tl.arange(0, TILE)[:, None], tl.arange(0, TILE)[None, :]
    place, at = shared_place(row, column, TILE), into + row * TILE + column
    if GROUPS > 1:
        number = tl.arange(0, GROUPS)[:, None, None] * (TILE * TILE)
        place, at = number + place[None, :, :], number + at[None, :, :]
    first, second = 1 + place, -1 - place
    if WHICH == "pairs from rows":
        first = pairs_from_rows(first, second, TILE)
    elif WHICH == "pairs from rows, across":
        first = pairs_from_rows(first, second, TILE, True)
    elif WHICH == "joined from pairs":
        first = joined_from_pairs(first, TILE)
    elif WHICH == "pairs from columns":
        first = pairs_from_columns(first, second, TILE)
    elif WHICH == "columns from pairs":
        left, right = columns_from_pairs(first, TILE)
        first = left - right
    elif WHICH == "diagonals from tiles":
        first = diagonals_from_tiles(first, second, TILE)
    elif WHICH == "tiles from diagonals":
        near, far = tiles_from_diagonals(first, TILE)
        first = near - far
    tl.store(at, first)


def rotated(which: str, size: int, device: str, groups: int = 1) -> np.ndarray:
    into = torch.empty(groups, size, size, dtype=torch.int32, device=device)
    rotated_kernel[(1,)](into, WHICH=which, TILE=size, GROUPS=groups, num_warps=4)
    return into.cpu().numpy() if groups > 1 else into[0].cpu().numpy()


def moved_at_a_time(places: np.ndarray) -> np.ndarray:
    """The places of the 32 threads of a warp, as a product of tensor cores lies in them: [move, thread]."""
    size = len(places)
    return places.reshape(size // 8, 8, size // 8, 4, 2).transpose(0, 2, 4, 1, 3).reshape(-1, 32)


@everywhere
@pytest.mark.parametrize("size", [16, 32, 64])
def test_a_tile_fills_its_memory(size: int, device: str) -> None:
    places = rotated("no rotation", size, device) - 1
    assert sorted(places.ravel()) == list(range(size * size))
    assert all(len(set(move % 32)) == 32 for move in moved_at_a_time(places))


@everywhere
@pytest.mark.parametrize("size", [16, 32, 64])
@pytest.mark.parametrize("which", SOURCES)
def test_every_number_comes_to_its_place_from_a_bank_of_its_own(which: str, size: int, device: str) -> None:
    places, found = rotated("no rotation", size, device), rotated(which, size, device)
    row, column, first = SOURCES[which](*np.indices((size, size)), size)
    expected = places[row, column]
    np.testing.assert_array_equal(found, expected if first is None else np.where(first, expected, -expected))
    assert all(len(set(move % 32)) == 32 for move in moved_at_a_time(abs(found) - 1))


@everywhere
@pytest.mark.parametrize("size", [16, 32])
@pytest.mark.parametrize("which", ["pairs from rows", "joined from pairs"])
def test_several_tiles_rotate_as_one_does(which: str, size: int, device: str) -> None:
    """Their places are written by digits, and each tile keeps to itself."""
    one, several = rotated(which, size, device), rotated(which, size, device, groups=4)
    for number, found in enumerate(several):
        np.testing.assert_array_equal(found, one + np.sign(one) * number * size * size)
