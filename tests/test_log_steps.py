"""Logarithmic buckets: whole where the logarithm is, whatever computes it."""

import math
from collections.abc import Callable
from fractions import Fraction

import pytest
import torch
from torch import Tensor

from relattn.encodings.log_steps import log_steps

PLACES = [(first, last, steps) for first in (2, 3, 4, 8, 128) for last in (5, 12, 27, 64, 128, 511, 512) if last > first
          for steps in (2, 3, 8, 127)]  # fmt: skip


def floor_of(distance: int, first: int, last: int, steps: int) -> int:
    """In whole numbers: the largest c with (last / first)^c <= (distance / first)^steps."""
    whole = 0
    while Fraction(last, first) ** (whole + 1) <= Fraction(distance, first) ** steps:
        whole += 1
    return whole


@pytest.mark.parametrize(("first", "last", "steps"), PLACES)
def test_floors_are_those_of_whole_numbers(first: int, last: int, steps: int) -> None:
    distances = range(first, last + 1, max(1, (last - first) // 40))
    found = log_steps(torch.tensor(distances), first, last, steps).floor().tolist()
    assert found == [floor_of(distance, first, last, steps) for distance in distances]


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
