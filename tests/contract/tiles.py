"""The tiled backend in tiles so small that a few positions cross every edge of a tile, as one more backend to test."""

import random

import pytest

from relattn.backends.select import BACKENDS
from relattn.backends.tiled import operator
from relattn.backends.tiled.sizes import TileSizes
from relattn.equation.problem import Problem

SMALL_TILES = "tiled, small tiles"
TESTED_BACKENDS = (*(name for name in BACKENDS if name not in ("triton", "native")), SMALL_TILES)
"""What the suite runs over: the backends that run float64 on a CPU, with the tiles that they choose, and small tiles.

`tests.triton` and `tests.native` run the others.

Parametrized as `backend`, indirectly: the fixture of that name in `fresh` then gives the name that a call takes.
"""


PAIRS = [(queries, keys) for queries in range(1, 5) for keys in range(1, 6) if queries * keys >= 4]
"""A tile's queries and keys: one of either, but not few of both, which would take most of the suite's time."""


def small_tiles(problem: Problem, seed: int) -> TileSizes:
    """PAIRS (eighths of a longer sequence), 1 or 2 key heads: the same again for the same shapes.

    So the backward pass, in which other tiles would be another dropout mask, has those of the forward pass.
    """
    shapes = [tuple(tensor.shape) for tensor in (problem.query, problem.key, problem.value)]
    rng = random.Random(f"{seed} {shapes}")
    query_unit, key_unit = (-(-max(length, 1) // 8) for length in (shapes[0][2], shapes[1][2]))
    queries, keys = rng.choice(PAIRS)
    return TileSizes(query_unit * queries, key_unit * keys, rng.randint(1, 2))


def start_backend(backend: str, seed: int, monkeypatch: pytest.MonkeyPatch) -> str:
    """The name that a call takes; for SMALL_TILES it is "tiled", whose tiles stay small until the patch is undone."""
    if backend != SMALL_TILES:
        return backend
    monkeypatch.setattr(operator, "tile_sizes", lambda problem: small_tiles(problem, seed))
    return "tiled"
