"""Which compiled kernels a test runs on."""

import pytest

from relattn.backends.cpu import library


def of(name: str) -> library.Kernels | str:
    """What the library answers where RELATTN_NATIVE is `name`.

    The variable is as before when this returns: the library keeps its first answer for the whole process.
    """
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RELATTN_NATIVE", name)
        return library.kernels.__wrapped__()


RUNNABLE = [name for name in library.SETS if isinstance(of(name), library.Kernels)]
"""The instruction sets of this machine, the widest first."""
OTHERS = [pytest.param(name, marks=pytest.mark.slow) for name in RUNNABLE[1:]]

every_set = pytest.mark.parametrize("instructions", [*RUNNABLE[:1], *OTHERS], indirect=True)
"""The widest, which calls take here, and among the slow tests the others."""
