"""The backend that a test runs on, whose small tiles are the test's own."""

import pytest

from relattn.backends.tiled import operator
from tests import seeds
from tests.contract.tiles import SMALL_TILES, small_tiles


@pytest.fixture
def backend(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """The backend's name; for SMALL_TILES it is "tiled", whose tiles stay small for the whole test."""
    if request.param != SMALL_TILES:
        return request.param
    seed = seeds.seed(request.node.nodeid, "tiles")
    monkeypatch.setattr(operator, "tile_sizes", lambda problem: small_tiles(problem, seed))
    return "tiled"
