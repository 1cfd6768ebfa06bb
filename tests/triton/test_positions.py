"""Where tokens stand: the positions of digits as a kernel computes them, against the digits themselves."""

from __future__ import annotations

import numpy as np
import pytest
import torch

triton = pytest.importorskip("triton")
tl = triton.language

from relattn import GridPositions, grid  # noqa: E402
from relattn.backends.triton.device.positions import Divisor, Side, divisor_of, positions_of, side_of  # noqa: E402
from relattn.positions.contiguous import ContiguousPositions  # noqa: E402
from relattn.positions.explicit import ExplicitPositions  # noqa: E402
from relattn.positions.position import Position  # noqa: E402
from tests.triton import everywhere  # noqa: E402

CPU = torch.device("cpu")


@triton.jit
def positions_kernel(side, count, found, TILE: tl.constexpr):
    """The positions of all tokens in two batch elements, [2, count]."""
    n = tl.program_id(0) * TILE + tl.arange(0, TILE)
    batch = tl.program_id(1)
    tl.store(found + batch * count + n, positions_of(side, batch, n, count), mask=n < count)


CASES: dict[str, tuple[Position, int]] = {
    "a run": (ContiguousPositions(-(2**40)), 70),
    "columns": (grid(9, 7)["x"], 63),
    "rows": (grid(9, 7)["y"], 63),
    "rows of frames": (grid(4, 3, 5)["y"], 60),
    "a grid with one row": (grid(1, 50)["y"], 50),
    "behind a class token": (grid(5, 6, prefix_tokens=1)["x"], 31),
    "behind tokens that stand off the grid": (grid(5, 6, prefix_tokens=5)["y"], 35),
    "a part that begins among those": (grid(5, 6, prefix_tokens=5, first=3, length=20)["x"], 20),
    "a later part": (grid(50, 60, first=1234, length=70)["y"], 70),
    "columns of a later part": (grid(50, 60, first=1234, length=70)["x"], 70),
    "a joint axis, far out": (GridPositions(((17, 8, 9), (-(2**33), 1, 8)), start=2**59, first=5), 72),
    "nowhere far out": (GridPositions(((1, 3, 4),), start=3, prefix_tokens=2, off_grid=-(2**50)), 30),
    "far along": (GridPositions(((1, 3, 5), (1, 7, 2**60)), first=2**61 + 11), 66),
    "close to 31 bits": (GridPositions(((1, 7, 2**30), (-3, 1, 7)), first=2**31 - 100), 66),
    "all of them nowhere": (GridPositions(((-2, 3, 4),), prefix_tokens=50, off_grid=7), 30),
    "a digit that never counts": (GridPositions(((4, 2**40, 3), (1, 1, 9), (5, 2**35, 1)), first=2**33 + 4), 40),
    "powers of two": (GridPositions(((1, 16, 4), (1, 64, 2), (3, 1, 16)), first=100), 100),
}


@everywhere
@pytest.mark.parametrize("name", CASES)
def test_positions_are_those_of_the_digits(name: str, device: str) -> None:
    """No list is made of them."""
    position, count = CASES[name]
    side = side_of(position, count, torch.device(device))
    assert side.at is None
    found = torch.empty(2, count, dtype=torch.int64, device=device)
    positions_kernel[(triton.cdiv(count, 16), 2)](side, count, found, TILE=16)
    for each in found:
        torch.testing.assert_close(each.cpu(), position.expand(count, CPU), rtol=0, atol=0)


@everywhere
@pytest.mark.parametrize("shape", [(70,), (1, 70), (2, 70)])
def test_lists_are_read(shape: tuple[int, ...], device: str) -> None:
    explicit = (torch.arange(140, device=device) * 2**40)[: int(np.prod(shape))].reshape(shape)
    apart = explicit.repeat_interleave(2, dim=-1)[..., ::2]
    for each in (explicit, apart):
        found = torch.empty(2, 70, dtype=torch.int64, device=device)
        positions_kernel[(5, 2)](side_of(ExplicitPositions(each), 70, torch.device(device)), 70, found, TILE=16)
        torch.testing.assert_close(found, each.expand(2, 70))


def test_what_32_bits_do_not_count_is_listed() -> None:
    """A digit that starts again after 2^31 tokens or more."""
    long = GridPositions(((1, 2**30, 3),), first=3 * 2**30 - 5)
    side = side_of(long, 9, CPU)
    assert side == Side(side.at, 0, None)
    torch.testing.assert_close(side.at, long.expand(9, CPU))


def test_a_divisor_divides_every_number_of_31_bits(rng: np.random.Generator) -> None:
    """Where a quotient begins and ends, for small sizes, powers of two, their neighbours, and others."""
    powers = [2**n + more for n in range(1, 31) for more in (-1, 0, 1)]
    for size in {*range(2, 70), *powers, *rng.integers(2, 2**31, 200).tolist()} - {0, 1}:
        divisor = divisor_of(size)
        assert divisor is not None
        assert divisor.size == size
        assert divisor.magic < 2**32
        steps = rng.integers(0, (2**31 - 1) // size, 100, endpoint=True) * size
        numbers = np.unique(np.clip([*steps, *(steps - 1), 0, 2**31 - 1], 0, 2**31 - 1))
        for n in map(int, numbers):
            assert (n * divisor.magic >> 32) >> divisor.shift == n // size, (n, size)


def test_a_divisor_is_left_out_where_nothing_is_divided() -> None:
    """A row that is never left, and tokens that follow one another: less to compute."""
    side = side_of(grid(9, 7)["x"], 63, CPU)
    assert side.digits is not None
    (term,) = side.digits.terms
    assert term.repeat is None
    assert isinstance(term.length, Divisor)
    side = side_of(grid(5, 6, prefix_tokens=1)["y"], 31, CPU)
    assert side.digits is not None
    assert side.digits.terms[0].length is None
    side = side_of(ContiguousPositions(3), 63, CPU)
    assert side.digits is not None
    (term,) = side.digits.terms
    assert (term.repeat, term.length) == (None, None)
