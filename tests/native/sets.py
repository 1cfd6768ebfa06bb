"""Which compiled kernels a test runs on, and how many queries and keys meet in their blocks."""

from collections.abc import Iterator

import numpy as np
import pytest

from relattn.backends.native import library, operator


def runnable() -> list[str]:
    """The instruction sets of this machine, the widest first."""
    with pytest.MonkeyPatch.context() as patch:
        return [name for name in library.SETS if isinstance(of(name, patch), library.Kernels)]


def of(name: str, patch: pytest.MonkeyPatch) -> library.Kernels | str:
    """What the library answers where RELATTN_NATIVE is `name`."""
    patch.setenv("RELATTN_NATIVE", name)
    return library.kernels.__wrapped__()


RUNNABLE = runnable()


@pytest.fixture
def instructions(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Kernels of one instruction set for the whole test: the parameter, a name."""
    found = of(request.param, monkeypatch)
    assert isinstance(found, library.Kernels) and found.name == request.param
    monkeypatch.setattr(operator, "kernels", lambda: found)
    return request.param


every_set = pytest.mark.parametrize("instructions", RUNNABLE, indirect=True)


@pytest.fixture
def small_blocks(rng: np.random.Generator, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Blocks of a few groups of queries and panels of keys, so that a hundred positions cross every edge."""
    for name in ("FORWARD_BLOCKS", "BACKWARD_BLOCKS"):
        monkeypatch.setattr(operator, name, (int(rng.integers(1, 40)), int(rng.integers(1, 70))))
    yield
