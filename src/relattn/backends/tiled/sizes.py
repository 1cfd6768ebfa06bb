"""The sizes of tiles."""

from __future__ import annotations

from typing import NamedTuple

from relattn.equation.problem import Problem

QUERIES = 128
KEYS = 2048
PAIRS = 2**21
"""A tile has QUERIES x KEYS pairs, in so many heads that it has PAIRS pairs in all.

Every tile costs a few dozen calls of PyTorch, so large ones win until their buffers (8 MiB each) leave the caches.
Ratios to PyTorch's own attention without any encoding, unclipped table, D = 64, float32 on 2 cores with 2 MiB of L2
each, an Intel Xeon. `python -m measure tile-sizes` takes them again, on the machine where it runs:

| B, H, L | queries x keys x heads | forward | training step |
|---|---|---|---|
| 1, 8, 2048 | 128 x 2048 x 8 | 2.17 | 2.22 |
| 1, 8, 2048 | 128 x 2048 x 2 | 2.28 | 2.33 |
| 1, 8, 2048 | 128 x 2048 x 1 | 3.14 | 3.45 |
| 1, 8, 4096 | 128 x 4096 x 2 | 1.95 | 2.05 |
| 1, 8, 4096 | 128 x 1024 x 8 | 2.02 | 2.22 |
| 1, 8, 4096 | 64 x 4096 x 1 | 3.02 | 2.97 |
| 1, 8, 4096, causal | 128 x 2048 x 4 | 2.02 | 1.71 |
| 1, 1, 4096 | 256 x 4096 x 1 | 2.64 | 1.94 |
| 1, 1, 4096 | 128 x 4096 x 1 | 2.85 | 2.08 |
| 1, 1, 4096 | 64 x 512 x 1 | 6.84 | 4.43 |
| 4, 4, 1024, causal | 128 x 1024 x 4 | 2.53 | 2.39 |

Half precision is computed in float32. float64 and GPUs were not measured separately.
"""


class TileSizes(NamedTuple):
    """A tile is `queries` x `keys` pairs in `key_heads` key heads and all the query heads that share them."""

    queries: int
    keys: int
    key_heads: int


def tile_sizes(problem: Problem) -> TileSizes:
    """As many heads as fill a tile. Chunks of keys are longer where there are few heads, shorter where many share one.

    Keys that causality and window hide from a tile do not count.
    """
    heads, groups, length = problem.query.shape[1], problem.num_groups(), problem.key.shape[2]
    keys = max(KEYS, PAIRS // 2 // (QUERIES * max(heads, 1)))
    keys = max(min(keys, PAIRS // (QUERIES * groups)), 1)
    lowest, highest = problem.sequence().positions.lowest, problem.sequence().positions.highest
    if lowest is not None and highest is not None:
        length = min(length, highest - lowest + QUERIES)
    key_heads = PAIRS // (QUERIES * max(min(keys, length), 1) * groups)
    return TileSizes(QUERIES, keys, max(key_heads, 1))
