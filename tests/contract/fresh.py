"""The backend that a test runs on, whose small blocks are the test's own."""

import pytest

from tests import seeds
from tests.contract.blocks import start_backend


@pytest.fixture
def backend(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """The backend's name. The blocks of "blocks" stay small for the whole test."""
    return start_backend(request.param, seeds.seed(request.node.nodeid, "blocks"), monkeypatch)
