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


every_set = pytest.mark.parametrize("instructions", RUNNABLE, indirect=True)
