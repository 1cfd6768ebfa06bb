"""Fresh random numbers and small tiles on every run, and the seed of those that failed."""

import secrets

import numpy as np
import pytest
import torch

from relattn.backends.tiled import operator
from tests.contract.tiles import SMALL_TILES, small_tiles


@pytest.fixture
def rng() -> np.random.Generator:
    """A generator with a new seed, printed beside a failure; torch's own generator starts from it too."""
    seed = secrets.randbits(32)
    print(f"seed of this test's random numbers: {seed}")
    torch.manual_seed(seed)
    return np.random.default_rng(seed)


@pytest.fixture
def backend(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """The backend's name; for SMALL_TILES it is "tiled", whose tiles stay small for the whole test."""
    if request.param != SMALL_TILES:
        return request.param
    seed = secrets.randbits(32)
    print(f"seed of this test's tiles: {seed}")
    monkeypatch.setattr(operator, "tile_sizes", lambda problem: small_tiles(problem, seed))
    return "tiled"
