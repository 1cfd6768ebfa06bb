"""tests/triton/interpreter.py: sums of bits are right, and Triton's language is itself again after a launch."""

from functools import reduce
from operator import xor

import numpy as np
import pytest
import torch

from tests.triton import everywhere

triton = pytest.importorskip("triton", reason="Triton is a package for Linux")
tl = triton.language

SHAPE = (4, 2, 8)


@triton.jit
def differing(numbers, out, AXIS: tl.constexpr, KEEP: tl.constexpr, REST: tl.constexpr):
    """The bits in which an odd count of the numbers [4, 2, 8] along an axis is 1, as a vector of length REST."""
    i, j, k = tl.arange(0, 4)[:, None, None], tl.arange(0, 2)[None, :, None], tl.arange(0, 8)[None, None, :]
    found = tl.xor_sum(tl.load(numbers + i * 16 + j * 8 + k), AXIS, keep_dims=KEEP)
    tl.store(out + tl.arange(0, REST), tl.reshape(found, (REST,)))


@everywhere
@pytest.mark.parametrize("keep_dims", [False, True])
@pytest.mark.parametrize("axis", [0, 1, 2])
def test_bits_that_differ(axis: int, keep_dims: bool, device: str, rng: np.random.Generator) -> None:
    numbers = rng.integers(-(2**31), 2**31, SHAPE, dtype=np.int32)
    expected = reduce(xor, np.moveaxis(numbers, axis, 0)).ravel()
    out = torch.zeros(expected.size, dtype=torch.int32, device=device)
    differing[(1,)](torch.tensor(numbers, device=device), out, AXIS=axis, KEEP=keep_dims, REST=expected.size)
    np.testing.assert_array_equal(out.cpu().numpy(), expected)


@triton.jit
def largest(numbers):
    return tl.max(numbers, axis=0)


@triton.jit
def largest_of_four(numbers, out):
    tl.store(out, largest(tl.load(numbers + tl.arange(0, 4))))


@everywhere
def test_a_launch_leaves_the_language_as_it_was(device: str) -> None:
    """In its own functions, and in ours that a kernel calls; a second launch works as the first."""
    for expected in (7, 9):
        out = torch.zeros(1, dtype=torch.int32, device=device)
        largest_of_four[(1,)](torch.tensor([3, expected, -5, 0], dtype=torch.int32, device=device), out)
        assert out.item() == expected
        assert tl.core.is_builtin(tl.load) and tl.core.is_builtin(tl.tensor.to)
