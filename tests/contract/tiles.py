"""The tiled backend in tiles so small that a few positions cross every edge of a tile, as one more backend to test."""

import random

from relattn.backends.select import BACKENDS
from relattn.backends.tiled.sizes import TileSizes
from relattn.score.problem import Problem

SMALL_TILES = "tiled, small tiles"
TESTED_BACKENDS = (*(name for name in BACKENDS if name not in ("triton", "native")), SMALL_TILES)
"""What the suite runs over: the backends that run float64 on a CPU, with the tiles that they choose, and small tiles.

`tests.triton` and `tests.native` run the others.

Parametrized as `backend`, indirectly: the fixture of that name in `fresh` then gives the name that a call takes.
"""


def small_tiles(problem: Problem, seed: int) -> TileSizes:
    """1..4 queries, 1..5 keys (eighths of a longer sequence), 1 or 2 key heads: the same again for the same shapes.

    So the backward pass, in which other tiles would be another dropout mask, has those of the forward pass.
    """
    shapes = [tuple(tensor.shape) for tensor in (problem.query, problem.key, problem.value)]
    rng = random.Random(f"{seed} {shapes}")
    query_unit, key_unit = (-(-max(length, 1) // 8) for length in (shapes[0][2], shapes[1][2]))
    return TileSizes(query_unit * rng.randint(1, 4), key_unit * rng.randint(1, 5), rng.randint(1, 2))
