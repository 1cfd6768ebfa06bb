"""Two and four processes, which live through the tests of a worker."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.distributed.ranks import Ranks


@pytest.fixture(scope="session")
def two() -> Iterator[Ranks]:
    """Two ranks."""
    ranks = Ranks(2)
    yield ranks
    ranks.stop()


@pytest.fixture(scope="session")
def four() -> Iterator[Ranks]:
    """Four ranks."""
    ranks = Ranks(4)
    yield ranks
    ranks.stop()
