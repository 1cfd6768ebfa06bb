"""What the tests of the benchmark share."""

from collections.abc import Iterator

import pytest

from measure import check as truth


@pytest.fixture(autouse=True)
def _truth_is_drawn_anew() -> Iterator[None]:
    """The truths that a process keeps are drawn by whichever check comes first: none is kept from test to test."""
    truth._truth.cache_clear()
    yield
    truth._truth.cache_clear()
