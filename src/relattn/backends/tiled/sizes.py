"""How large the tiles are."""

from __future__ import annotations

from typing import NamedTuple

from relattn.score.problem import Problem


class TileSizes(NamedTuple):
    """A tile is `queries` x `keys` pairs under `key_heads` key heads and all the query heads that share them."""

    queries: int
    keys: int
    key_heads: int


def tile_sizes(problem: Problem) -> TileSizes:
    queries, keys, pairs = 128, 2048, 2**19
    heads = max(pairs // (queries * min(keys, max(problem.key.shape[2], 1))), 1)
    return TileSizes(queries, keys, max(heads // problem.num_groups, 1))
