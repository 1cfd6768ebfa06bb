"""Fresh random numbers on every run, and the seed of those that failed."""

import secrets

import numpy as np
import pytest
import torch


@pytest.fixture
def rng() -> np.random.Generator:
    """A generator with a new seed, printed beside a failure; torch's own generator starts from it too."""
    seed = secrets.randbits(32)
    print(f"seed of this test's random numbers: {seed}")
    torch.manual_seed(seed)
    return np.random.default_rng(seed)
