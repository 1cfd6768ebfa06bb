"""What the tests of the emulator share: fixed random numbers."""

import zlib

import numpy as np
import pytest


@pytest.fixture
def rng(request: pytest.FixtureRequest) -> np.random.Generator:
    """A generator of the test's own, which its name fixes."""
    return np.random.default_rng(zlib.crc32(request.node.nodeid.encode()))
