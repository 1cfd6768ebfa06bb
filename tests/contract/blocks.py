"""The backends that the suite runs over; `blocks` in blocks so small that a few positions cross every edge of one."""

import random

import pytest

from relattn.backends import blocks
from relattn.backends.select import BACKENDS

TESTED_BACKENDS = tuple(name for name in BACKENDS if name not in ("triton", "native"))
"""Those that run float64 on a CPU. `tests.triton` and `tests.native` run the others.

Parametrized as `backend`, indirectly: the fixture of that name in `fresh` then makes blocks small.
"""


def make_blocks_small(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """They have 1 to 5 queries and one key head, or all, until the patch is undone."""
    rng = random.Random(seed)
    monkeypatch.setattr(blocks, "QUERIES", rng.randint(1, 5))
    monkeypatch.setattr(blocks, "PAIRS", rng.choice((1, 2**20)))
