"""The backward pass: every tile's weights are computed again, then the gradients.

With P = softmax(S) = exp(S - lse), P~ = P dropped out, and the gradients dO of the output and dlse of lse:

    dP~_ij = dO_i . (v_j + RV[d])          dS_ij = P_ij * (drop(dP~)_ij - delta_i)
    delta_i = dO_i . O_i - dlse_i          (Dao et al. 2022, appendix B.2, with dropout and the gradient of lse)

    dq_i = scale * sum_j dS_ij k_j         dr_i = scale * sum_j dS_ij RK[d]       dv_j = sum_i P~_ij dO_i
    dk_j = scale * sum_i dS_ij (q_i + RQ[d])
    dRK[d], dRQ[d], dRV[d], db[d]: the sums of scale * dS_ij r_i, scale * dS_ij k_j, P~_ij dO_i and dS_ij along offset d

S is held in base 2 here, S' = S * log2(e): dS' = dS * ln(2), and the scale and the bias carry log2(e) with them.
"""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor

from relattn.backends.problem_operator import Answers, Seed
from relattn.backends.tiled.bands import Offsets
from relattn.backends.tiled.base_two import LN_2, LOG2_E, weights_
from relattn.backends.tiled.dropout import Dropout
from relattn.backends.tiled.scores import Call, Group, QueryTile
from relattn.backends.tiled.sizes import TileSizes
from relattn.backends.tiled.tiles import head_groups, key_chunks, query_tiles
from relattn.equation.mask import tile_of
from relattn.equation.problem import TABLES, Differentiable, PerAxis, PerTable, Problem

NO_TABLES = PerTable[Tensor | None](None, None, None, None)


def backward(
    problem: Problem, sizes: TileSizes, seed: Seed, answers: Answers, wanted: Differentiable[bool]
) -> Differentiable[Tensor | None]:
    """The gradients that are wanted. Where r is q itself, that by the query is the sum of both."""
    sums = _memory(problem, wanted)
    call = Call.of(problem, sizes, gradients=wanted)
    dropout = Dropout(problem, seed)
    for heads in head_groups(problem, sizes):
        group = _GroupGradients(Group.of(call, heads), sums)
        for queries in query_tiles(problem, sizes):
            tile = _TileGradients(group, queries, answers)
            for keys in key_chunks(problem, sizes, call.ranges, heads, queries):
                tile.add(keys, dropout)
            tile.write()
        group.write()
    axes = []
    for axis, bands, asked, held in zip(problem.axes, call.bands, wanted.axes, sums.axes, strict=True):
        tables = [
            bands[name].table_gradient(table) if one and table is not None else None
            for name, table, one in zip(TABLES, axis[2:], asked.tables, strict=True)
        ]
        axes.append(held._replace(tables=PerTable(*tables)))
    return sums._replace(axes=axes)


def _memory(problem: Problem, wanted: Differentiable[bool]) -> Differentiable[Tensor | None]:
    """Where all gradients but the tables' add up. The mask's and the key bias's, which has every head, are zeros in the
    dtype of the scores.
    """

    def empty(tensor: Tensor | None, is_wanted: bool) -> Tensor | None:
        if tensor is None or not is_wanted:
            return None
        return torch.empty_like(tensor, memory_format=torch.contiguous_format)

    dtype, query, mask = problem.score_dtype(), problem.query, problem.mask.pairs
    axes = [
        PerAxis(empty(axis.relative_query, one.relative_query), NO_TABLES)
        for axis, one in zip(problem.axes, wanted.axes, strict=True)
    ]
    return Differentiable(
        empty(query, wanted.query),
        empty(problem.key, wanted.key),
        empty(problem.value, wanted.value),
        query.new_zeros(mask.shape, dtype=dtype) if mask is not None and wanted.explicit_mask else None,
        query.new_zeros(*query.shape[:2], problem.key.shape[2], dtype=dtype) if wanted.key_bias else None,
        axes,
    )


class _GroupGradients:
    """The gradients by a group's keys and values, in the dtype of the scores: the result itself if it has it.

    Every tile of queries adds to them.
    """

    def __init__(self, group: Group, sums: Differentiable[Tensor | None]):
        self.group, self.sums = group, sums
        self.key, self.value = self._zeros(sums.key), self._zeros(sums.value)

    def _zeros(self, whole: Tensor | None) -> Float[Tensor, "Hk Lk F"] | None:
        if whole is None:
            return None
        part, dtype = self._part(whole), self.group.scratch.dtype
        return part.zero_() if part.dtype == dtype else torch.zeros_like(part, dtype=dtype)

    def _part(self, whole: Tensor) -> Float[Tensor, "Hk Lk F"]:
        return whole[self.group.heads.batch, self.group.heads.keys]

    def write(self) -> None:
        """Copy the gradients that did not add up in the result itself."""
        for whole, gradient in ((self.sums.key, self.key), (self.sums.value, self.value)):
            if whole is not None and gradient is not None and gradient.dtype != whole.dtype:
                self._part(whole).copy_(gradient)


class _TileGradients:
    """The gradients by a tile's queries, and the tile's part of all others.

    P = 2^(S - maximum) / total. We divide dO by total in place of P, because dO is smaller: output_gradient is
    dO / total. On the way to the scores, dS' = dS * ln(2) goes in there too: toward_scores is
    dO / total * ln(2), delta likewise. A row that saw no key takes no gradient.
    """

    def __init__(self, gradients: _GroupGradients, queries: slice, answers: Answers):
        self.gradients, self.group = gradients, gradients.group
        self.tile = tile = QueryTile.of(self.group, queries)
        rows = self.group.rows
        total, self.maximum = rows(answers.total.unsqueeze(3), queries), rows(answers.maximum.unsqueeze(3), queries)
        unseeing = self.maximum == -torch.inf
        self.maximum.masked_fill_(unseeing, 0.0)  # its scores are -inf, and its weights 2^-inf = 0
        dO = rows(answers.output_gradient, queries).masked_fill(unseeing, 0.0)
        self.output_gradient = dO / total.masked_fill_(unseeing, 1.0)
        self.toward_scores = self.output_gradient * LN_2
        self.delta = (self.toward_scores * rows(answers.output, queries)).sum(dim=2, keepdim=True)
        self.delta -= rows(answers.lse_gradient.unsqueeze(3), queries).masked_fill(unseeing, 0.0) / total * LN_2
        self.query = torch.zeros_like(tile.query)
        self.relative_query = [self.query if r is None else torch.zeros_like(r) for r in tile.relative_query]

    def add(self, keys: slice, dropout: Dropout) -> None:
        """Add up what the tile's pairs with `keys` contribute to every gradient."""
        scores = self.tile.scores(keys)
        if scores is None:
            return
        weights = weights_(scores.sub_(self.maximum))
        factors = dropout.factors(self.group.heads, self.tile.queries, keys)
        dropped = weights
        if factors is not None:
            dropped = torch.mul(weights, factors, out=self.group.scratch.take("dropped", *weights.shape))
        offsets = self.tile.offsets(keys)
        self._add_to_values(dropped, offsets, keys)
        weight_gradient = self._weight_gradient(offsets, keys)
        if factors is not None:
            weight_gradient *= factors
        dS = weight_gradient.sub_(self.delta).mul_(weights)
        self._add_to_masks(dS, keys)
        if self.group.problem.softcap is not None:  # on to the scores below the cap: 1 - tanh^2
            capped = self.group.scratch.take("capped", *dS.shape)
            dS.addcmul_(dS, capped.square_(), value=-1.0)
        self._add_to_scores(dS, offsets, keys)

    def write(self) -> None:
        """Put the finished gradients where they belong."""
        heads, scale, sums = self.group.heads, self.group.scale, self.gradients.sums
        wholes = [sums.query, *(axis.relative_query for axis in sums.axes)]
        for whole, gradient in zip(wholes, [self.query, *self.relative_query], strict=True):
            if whole is not None:
                whole[heads.batch, heads.queries, self.tile.queries] = gradient.flip(1) * scale

    def _weight_gradient(self, offsets: list[Offsets], keys: slice) -> Float[Tensor, "H n m"]:
        """dP~_ij = dO_i . (v_j + RV[d]), with the factors that the class describes."""
        group, dO = self.group, self.toward_scores
        gradient = group.scratch.take("gradient", *dO.shape[:2], keys.stop - keys.start)
        torch.bmm(group.per_key_head(dO), group.value_columns[:, :, keys], out=group.per_key_head(gradient))
        for bands, of_axis in zip(group.bands, offsets, strict=True):
            if "relative_values" in bands:
                bands["relative_values"].spread(gradient, dO, of_axis)
        return gradient

    def _add_to_values(self, dropped: Float[Tensor, "H n m"], offsets: list[Offsets], keys: slice) -> None:
        """dv_j += sum_i P~_ij dO_i, and dRV."""
        group, value = self.group, self.gradients.value
        if value is not None:
            weights, dO = group.per_key_head(dropped), group.per_key_head(self.output_gradient)
            value[:, keys] += torch.bmm(weights.transpose(1, 2), dO)  # into a part of a tensor baddbmm_ is slower
        for bands, of_axis in zip(group.bands, offsets, strict=True):
            if "relative_values" in bands:
                bands["relative_values"].collect(dropped, self.output_gradient, of_axis, None)

    def _add_to_scores(self, dS: Float[Tensor, "H n m"], offsets: list[Offsets], keys: slice) -> None:
        """The gradients by everything that a score before the cap is made of: dq, dr, dk, dRK, dRQ and db."""
        group, tile, key = self.group, self.tile, self.gradients.key
        if self.gradients.sums.query is not None:
            group.per_key_head(self.query).baddbmm_(group.per_key_head(dS), group.key[:, keys])
        if key is not None:
            key[:, keys] += torch.bmm(group.per_key_head(dS).transpose(1, 2), group.per_key_head(tile.query))
        for number, of_axis in enumerate(offsets):
            self._add_to_axis(number, dS, of_axis, keys)

    def _add_to_axis(self, number: int, dS: Float[Tensor, "H n m"], offsets: Offsets, keys: slice) -> None:
        """The gradients by the terms of one axis: dr, dRK, dRQ with its part of dk, and db."""
        group, tile, key = self.group, self.tile, self.gradients.key
        bands = group.bands[number]
        if "relative_keys" in bands:
            r = tile.relative_query[number]
            bands["relative_keys"].collect(dS, tile.query if r is None else r, offsets, self.relative_query[number])
        if "relative_queries" in bands:
            for block in tile.key_blocks(keys, offsets):
                sums = torch.zeros_like(block.key)
                bands["relative_queries"].collect(block.transposed(dS), block.key, block.offsets, sums)
                if key is not None:
                    by_query_head = sums.unflatten(0, (key.shape[0], -1)) * group.scale
                    key[:, keys][:, block.columns] += by_query_head.sum(dim=1)
        if "bias" in bands:
            bands["bias"].collect(dS, None, offsets, None)

    def _add_to_masks(self, dS: Float[Tensor, "H n m"], keys: slice) -> None:
        """The gradients by the terms that are added after the cap: the key bias and a float mask."""
        heads, sums = self.group.heads, self.gradients.sums
        if sums.key_bias is not None:
            sums.key_bias[heads.batch, heads.queries, keys] += dS.sum(dim=1) * LOG2_E
        if sums.explicit_mask is not None:
            part = tile_of(sums.explicit_mask, heads.batch, heads.queries, self.tile.queries, keys)[0]
            part += dS.flip(1).sum_to_size(part.shape) * LOG2_E
