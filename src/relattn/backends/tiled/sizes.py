"""How large the tiles are."""

from __future__ import annotations

from typing import NamedTuple

from relattn.score.problem import Problem

QUERIES = 128
KEYS = 2048
PAIRS = 2**21


class TileSizes(NamedTuple):
    """A tile is `queries` x `keys` pairs under `key_heads` key heads and all the query heads that share them."""

    queries: int
    keys: int
    key_heads: int


def tile_sizes(problem: Problem) -> TileSizes:
    """As many heads as fill a tile of PAIRS pairs; where they are too few, longer chunks of keys."""
    heads, groups, length = problem.query.shape[1], problem.num_groups, problem.key.shape[2]
    keys = max(KEYS, PAIRS // 2 // (QUERIES * max(heads, 1)))
    key_heads = PAIRS // (QUERIES * min(keys, max(length, 1)) * groups)
    return TileSizes(QUERIES, keys, max(key_heads, 1))
