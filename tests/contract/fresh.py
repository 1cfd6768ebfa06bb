"""The backend that a test runs on, whose small tiles are the test's own."""

import pytest

from tests import seeds
from tests.contract.tiles import start_backend


@pytest.fixture
def backend(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """The backend's name; for SMALL_TILES it is "tiled", whose tiles stay small for the whole test."""
    return start_backend(request.param, seeds.seed(request.node.nodeid, "tiles"), monkeypatch)
