"""The backend that a test runs on, whose small blocks are the test's own."""

import pytest

from tests import seeds
from tests.contract.blocks import make_blocks_small


@pytest.fixture
def backend(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """The backend's name. The blocks of "blocks" stay small for the whole test."""
    make_blocks_small(seeds.seed(request.node.nodeid, "blocks"), monkeypatch)
    return request.param
