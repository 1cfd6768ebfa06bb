"""Sequences split over processes: the numbers and gradients of one process."""

from __future__ import annotations

import pytest

from tests.distributed.draw import KINDS, check, drawn
from tests.distributed.ranks import Ranks

SOME = range(0, len(KINDS), 8)
"""A rotation, a bias, sums and a grid are among them, and each way to rotate keys over the ranks."""
MANY = 2 * len(KINDS)


def compare(rank: int, world: int, numbers: range) -> None:
    for number in numbers:
        call = drawn(world, number)
        try:
            check(call)
        except Exception as error:
            raise AssertionError(f"call {number}: {call}: {error}") from error


def test_random_calls_on_two(two: Ranks) -> None:
    two(compare, 2, SOME)


@pytest.mark.slow
@pytest.mark.parametrize("first", range(0, MANY, 45))
def test_many_random_calls_on_two(first: int, two: Ranks) -> None:
    two(compare, 2, range(first, min(first + 45, MANY)), timeout=500.0)


@pytest.mark.slow
@pytest.mark.parametrize("first", range(0, MANY, 51))
def test_many_random_calls_on_four(first: int, four: Ranks) -> None:
    four(compare, 4, range(first, min(first + 51, MANY)), timeout=500.0)
