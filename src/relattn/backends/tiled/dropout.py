"""Dropout of a tile's weights, drawn again in the backward pass."""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor

from relattn.backends.problem_operator import Seed
from relattn.backends.tiled.tiles import Heads
from relattn.equation.philox import scaled_pairs
from relattn.equation.problem import Problem


class Dropout:
    """The factors 0 or 1/(1-p) of every pair: see `relattn.equation.philox`."""

    def __init__(self, problem: Problem, seed: Seed):
        self.kept, self.seed = 1.0 - problem.dropout_p, None if seed is None else int(seed)
        self.first_query, self.first_key, self.first_head, self.num_heads = problem.dropout_origin()
        self.dtype, self.device = problem.score_dtype(), problem.query.device

    def factors(self, heads: Heads, queries: slice, keys: slice) -> Float[Tensor, "H n m"] | None:
        """The factors of a tile's weights, the last query first; None without dropout."""
        if self.seed is None:
            return None
        first = heads.batch * self.num_heads + self.first_head
        counted = torch.arange(first + heads.queries.start, first + heads.queries.stop, device=self.device)
        pairs = _moved(queries, self.first_query), _moved(keys, self.first_key)
        return scaled_pairs(self.seed, self.kept, counted, *pairs, self.dtype).flip(1)


def _moved(part: slice, by: int) -> slice:
    return slice(part.start + by, part.stop + by)
