"""Which compiled kernels a test runs on."""

import pytest

from relattn.compiled import library


def runnable() -> list[str]:
    """The instruction sets of this machine, the widest first."""
    with pytest.MonkeyPatch.context() as patch:
        return [name for name in library.SETS if isinstance(of(name, patch), library.Kernels)]


def of(name: str, patch: pytest.MonkeyPatch) -> library.Kernels | str:
    """What the library answers where RELATTN_NATIVE is `name`."""
    patch.setenv("RELATTN_NATIVE", name)
    return library.kernels.__wrapped__()


RUNNABLE = runnable()
OTHERS = [pytest.param(name, marks=pytest.mark.slow) for name in RUNNABLE[1:]]

every_set = pytest.mark.parametrize("instructions", [*RUNNABLE[:1], *OTHERS], indirect=True)
"""The widest, which calls take here, and among the slow tests the others."""
