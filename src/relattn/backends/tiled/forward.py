"""The forward pass: O_i = sum_j softmax(S)_ij * (v_j + RV[d]), one tile at a time; the softmax moves along the keys."""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor

from relattn.backends.problem_operator import Forward, Seed
from relattn.backends.tiled.base_two import LN_2, weights_
from relattn.backends.tiled.dropout import Dropout
from relattn.backends.tiled.scores import Call, Group, QueryTile
from relattn.backends.tiled.sizes import TileSizes
from relattn.backends.tiled.tiles import head_groups, key_chunks, query_tiles
from relattn.equation.problem import Problem


def forward(problem: Problem, sizes: TileSizes, seed: Seed) -> Forward:
    """softmax(S) @ (v + RV), tile by tile."""
    query, rows = problem.query, problem.query.shape[:3]
    output = query.new_empty((*rows, problem.value.shape[3]), dtype=problem.output_dtype)
    maximum, total = (query.new_empty(rows, dtype=problem.score_dtype()) for _ in range(2))
    call = Call.of(problem, sizes, gradients=None)
    dropout = Dropout(problem, seed)
    for heads in head_groups(problem, sizes):
        group = Group.of(call, heads)
        for queries in query_tiles(problem, sizes):
            tile = QueryTile.of(group, queries)
            rows = _Rows(tile)
            for keys in key_chunks(problem, sizes, call.ranges, heads, queries):
                scores = tile.scores(keys)
                if scores is not None:
                    rows.add(scores, keys, dropout)
            place = heads.batch, heads.queries, queries
            output[place] = rows.output().flip(1)
            maximum[place] = rows.maximum.squeeze(2).flip(1)
            total[place] = rows.total.squeeze(2).flip(1)
    lse = (maximum + total.log2()) * LN_2
    return Forward(output, lse if call.key_bias is None else lse + call.key_bias[1], maximum, total)


class _Rows:
    """The running softmax of a tile's rows (Milakov and Gimelshein 2018, algorithm 3).

    With S in base 2, maximum [H, n, 1]: the largest score so far; total: the sum of 2^(S - maximum); weighted
    [H, n, Dv]: the sum of 2^(S - maximum) * (v + RV[d]), dropped out.
    """

    def __init__(self, tile: QueryTile):
        self.tile = tile
        query = tile.query
        self.maximum = query.new_full((*query.shape[:2], 1), -torch.inf)
        self.total = torch.zeros_like(self.maximum)
        self.weighted = query.new_zeros(*query.shape[:2], tile.group.problem.value.shape[3])

    def add(self, scores: Float[Tensor, "H n m"], keys: slice, dropout: Dropout) -> None:
        """Add the scores of some more keys; the scores are overwritten."""
        group, before = self.tile.group, self.maximum
        self.maximum = torch.maximum(before, scores.amax(dim=2, keepdim=True))
        shift = self.maximum.masked_fill(self.maximum == -torch.inf, 0.0)  # nothing visible yet: 2^(-inf - 0) = 0
        weights = weights_(scores.sub_(shift))
        older = (before - shift).exp2_()
        self.total.mul_(older).add_(weights.sum(dim=2, keepdim=True))
        factors = dropout.factors(group.heads, self.tile.queries, keys)
        if factors is not None:
            weights *= factors
        self.weighted.mul_(older)
        group.per_key_head(self.weighted).baddbmm_(group.per_key_head(weights), group.value[:, keys])
        if any("relative_values" in bands for bands in group.bands):  # else no offset is needed a second time
            for bands, offsets in zip(group.bands, self.tile.offsets(keys), strict=True):
                if "relative_values" in bands:
                    bands["relative_values"].collect(weights, None, offsets, self.weighted)

    def output(self) -> Float[Tensor, "H n Dv"]:
        """O; zero for a row that saw no key."""
        return self.weighted / self.total.masked_fill(self.total == 0.0, 1.0)
