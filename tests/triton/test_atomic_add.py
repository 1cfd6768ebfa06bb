"""What programs add to memory: every number comes to its row and column, and what belongs to no row comes to none."""

import numpy as np
import pytest
import torch

triton = pytest.importorskip("triton")
tl = triton.language

from relattn.backends.triton.device.atomic_add import add_rows, first_row  # noqa: E402
from relattn.backends.triton.device.bands import padded  # noqa: E402
from tests.triton import everywhere  # noqa: E402

ROWS = 50


@triton.jit
def add_kernel(
    memory, values, first, count, WIDTH: tl.constexpr, TILE: tl.constexpr, GROUPS: tl.constexpr, OUTSIDE: tl.constexpr
):  # fmt: skip
    """Tiles of values [GROUPS, TILE, padded width], to the rows of the second of three heads."""
    places = tl.arange(0, TILE)[:, None] * padded(WIDTH) + tl.arange(0, padded(WIDTH))[None, :]
    if GROUPS > 1:
        places = tl.arange(0, GROUPS)[:, None, None] * (TILE * padded(WIDTH)) + places[None, :, :]
    at = first_row(memory, tl.program_id(0) + 1, count, WIDTH)
    add_rows(at, first, count, tl.load(values + places), WIDTH, TILE, OUTSIDE)


@everywhere
@pytest.mark.parametrize("many_outside", [False, True])
@pytest.mark.parametrize("width", [16, 40, 64, 100])
@pytest.mark.parametrize(("tile", "groups"), [(16, 1), (32, 1), (64, 1), (16, 2), (32, 4)])
def test_rows_are_added_at_their_places(tile: int, groups: int, width: int, many_outside: bool, device: str) -> None:
    rng = np.random.default_rng(tile * groups + width)
    wide = max(16, triton.next_power_of_2(width))
    values = rng.integers(-9, 9, (groups, tile, wide)).astype(np.float32)
    for first in (-300, -20, 0, 3, ROWS - 5, ROWS + 200):
        before = rng.integers(-9, 9, (3, 1 + ROWS + 1, width)).astype(np.float32)
        memory = torch.tensor(before, device=device)
        add_kernel[(1,)](
            memory, torch.tensor(values, device=device), first, ROWS,
            WIDTH=width, TILE=tile, GROUPS=groups, OUTSIDE=many_outside,
        )  # fmt: skip
        expected = before.copy()
        for number, rows in enumerate(values):
            for row, each in enumerate(rows, first - number * tile):
                if 0 <= row < ROWS:
                    expected[1, 1 + row] += each[:width]
                elif not many_outside:
                    expected[1, 0 if row < 0 else -1] += each[:width]
        np.testing.assert_array_equal(memory.cpu().numpy(), expected)
