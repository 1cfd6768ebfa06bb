"""The kernels of one instruction set, and blocks of few queries and keys."""

import math
from collections.abc import Iterator

import numpy as np
import pytest

from relattn.backends.cpu import library, operator, rotation
from tests.native.sets import of


@pytest.fixture
def instructions(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Kernels of one instruction set for the whole test: the parameter, a name."""
    found = of(request.param)
    assert isinstance(found, library.Kernels) and found.name == request.param
    for asking in (operator, rotation):
        monkeypatch.setattr(asking, "kernels", lambda: found)
    return request.param


@pytest.fixture(autouse=True)
def unwritten_memory_is_nan(monkeypatch: pytest.MonkeyPatch) -> None:
    """The kernels' workspace holds NaN where they have not written, not what happened to lie there."""
    made = operator.unwritten
    monkeypatch.setattr(operator, "unwritten", lambda floats: made(floats).fill_(math.nan))


@pytest.fixture
def small_blocks(rng: np.random.Generator, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Blocks of a few groups of queries and panels of keys, so that a hundred positions cross every edge."""
    for name in ("FORWARD_BLOCKS", "BACKWARD_BLOCKS"):
        monkeypatch.setattr(operator, name, (int(rng.integers(1, 40)), int(rng.integers(1, 70))))
    yield
