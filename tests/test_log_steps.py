"""Logarithmic buckets: whole where the logarithm is, whatever computes it."""

import math
from collections.abc import Callable
from fractions import Fraction

import numpy as np
import pytest
import torch
from torch import Tensor

from relattn import offsets
from relattn.encodings.log_steps import log_steps

PLACES = [(first, last, steps) for first in (2, 3, 4, 8, 128) for last in (5, 12, 27, 64, 128, 511, 512) if last > first
          for steps in (2, 3, 8, 127)]  # fmt: skip


def floor_of(distance: int, first: int, last: int, steps: int) -> int:
    """In whole numbers: the largest c with (last / first)^c <= (distance / first)^steps."""
    whole = 0
    while Fraction(last, first) ** (whole + 1) <= Fraction(distance, first) ** steps:
        whole += 1
    return whole


def ceil_of(distance: int, first: int, last: int, steps: int) -> int:
    """The smallest c with (last / first)^c >= (distance / first)^steps."""
    whole = floor_of(distance, first, last, steps)
    return whole + (Fraction(last, first) ** whole < Fraction(distance, first) ** steps)


@pytest.mark.parametrize(("first", "last", "steps"), PLACES)
def test_whole_numbers_are_those_of_fractions(first: int, last: int, steps: int) -> None:
    """Rounded down as in T5, and up as in DeBERTa; for torch and for NumPy."""
    distances = np.arange(first, last + 1, max(1, (last - first) // 40))
    below = [floor_of(int(distance), first, last, steps) for distance in distances]
    above = [ceil_of(int(distance), first, last, steps) for distance in distances]
    for found in (log_steps(torch.from_numpy(distances), first, last, steps).numpy(),
                  offsets._log_steps(distances, first, last, steps)):  # fmt: skip
        assert np.floor(found).tolist() == below
        assert np.ceil(found).tolist() == above


@pytest.mark.parametrize("off", [2.0**-50, -(2.0**-50)])
def test_a_logarithm_that_is_off_in_its_last_digits_changes_nothing(
    off: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As another device's may be: at 16, 32 and 64 T5's buckets begin."""
    log: Callable[[Tensor], Tensor] = Tensor.log
    monkeypatch.setattr(Tensor, "log", lambda values: log(values) * (1.0 + off))
    found = log_steps(torch.tensor([15, 16, 31, 32, 63, 64]), 8, 128, 8)
    assert found[1::2].tolist() == [2.0, 4.0, 6.0]
    assert found[::2].tolist() == pytest.approx([8 * math.log(n / 8) / math.log(16) for n in (15, 31, 63)])
