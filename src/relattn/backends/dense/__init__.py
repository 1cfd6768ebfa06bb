"""The dense backend: the whole score matrix at once, with matrix products and a strided view."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor

from relattn.backends.dense.arrangement import add, arrange_by_key, arrange_by_query
from relattn.backends.dense.products import key_products, row_products, row_sums, value_sums
from relattn.equation.key_bias import lowered
from relattn.equation.philox import factors_of
from relattn.equation.problem import Problem
from relattn.equation.sinks import share
from relattn.equation.tables import OffsetTable
from relattn.equation.visibility import Visibility, with_zeros, within_reach
from relattn.interception import under_torch_func
from relattn.positions.positions import Positions

KEYS_AT_ONCE = 128
"""The number of keys per strip of relative queries where there are few queries.

Times in ms for 8192 keys, 8 heads of width 64, float32, 1 core, all keys in one strip / 256 / 128 / 64 / 32 at a time:
2 queries, 2158 / 35 / 25 / 21 / 22; 31 queries, 2311 / 52 / 41 / 37 / 37. A smaller number would split short calls,
too.
"""

MANY_SCORES = 2**24
"""From this many scores on the softmax overwrites them, this many at a time. So no second tensor of their size is held.
"""

Scores = Float[Tensor, "B Hq Lq Lk"]
Outputs = Float[Tensor, "B Hq Lq Dv"]


class DenseBackend:
    """S and softmax(S) as tensors, in O(Lq Lk) memory, by differentiable torch operations.

    For small problems, double backward and attention weights. Scores, softmax and sums are float32 (float64 for float64
    inputs).
    """

    name = "dense"

    def reasons(self, problem: Problem) -> list[str]:
        """It runs everything."""
        return []

    def run(self, problem: Problem) -> tuple[Tensor, Tensor | None]:
        """O_i = sum_j softmax(S)_ij * (v_j + RV[d]), with the same dropout of the weights for both terms."""
        problem = within_reach(problem)
        scores, visibility, key_shift = _masked_scores(problem)
        alive = None if visibility.queries is None else visibility.queries.unsqueeze(-1)
        lse = problem.with_values(scores.logsumexp(dim=-1)) if problem.return_lse else None
        if lse is not None and key_shift is not None:
            lse = lse + key_shift
        weights = _softmax(scores)
        if problem.dropout_p > 0.0:  # by the problem's seed where it has one, else as torch's generator draws
            seed = problem.seed
            weights = F.dropout(weights, problem.dropout_p) if seed is None else weights * factors_of(problem, seed)
        output = value_sums(weights, problem.value, visibility.keys)
        # Only visible pairs have their own column in a strip: a row without visible pairs must not enter it.
        if alive is not None and any(axis.relative_values is not None for axis in problem.axes):
            weights = weights.masked_fill(~alive, 0.0)
        output = add_relative_values(output, weights, problem)
        if alive is not None:  # zeroing the rows without a key here also zeroes every gradient that would pass through
            output = output.masked_fill(~alive, 0.0)
            lse = None if lse is None else lse.masked_fill(~alive.squeeze(-1), -torch.inf)
        return output.to(problem.output_dtype), lse

    def weights(self, problem: Problem) -> Scores:
        """softmax(S), in the dtype of the query; rows with nothing to attend to are zero."""
        scores, visibility, key_shift = _masked_scores(problem)
        lse = None if problem.sinks is None else scores.logsumexp(dim=-1)
        weights = with_zeros(_softmax(scores), visibility.queries)
        if lse is not None and problem.sinks is not None:
            weights = weights * share(lse if key_shift is None else lse + key_shift, problem.sinks)
        return weights.to(problem.output_dtype)


def add_relative_values(output: Outputs, weights: Scores, problem: Problem) -> Outputs:
    """output_i + sum_j w_ij RV[d]. The weights of hidden pairs are zero."""
    for axis in problem.axes:
        if axis.relative_values is not None:
            arranged = arrange_by_query(axis.relative_values, axis.positions, weights.dtype)
            output = output + row_sums(arranged.collect(weights), arranged.rows)
    return output


def _softmax(scores: Scores) -> Scores:
    """softmax(S). Where there are many pairs and no graph needs S, it overwrites S, a few heads at a time."""
    looked_at = scores.requires_grad or torch.compiler.is_compiling() or under_torch_func()
    if looked_at or scores.numel() < MANY_SCORES or not scores.is_contiguous():
        return scores.softmax(dim=-1)
    heads = scores.flatten(0, 1)
    for some in heads.split(max(heads.shape[0] * MANY_SCORES // scores.numel(), 1)):
        some.copy_(some.softmax(dim=-1))
    return scores


def _masked_scores(problem: Problem) -> tuple[Scores, Visibility, Float[Tensor, "#B #Hq #Lq"] | None]:
    """S' - c with -inf where a pair may not attend; which keys and queries have a pair left; and c, None for 0.

    A row without a pair is left unmasked. Its scores stay finite, so no gradient gets a NaN. Padding is set to zero
    only for gradients, so that decoding copies no keys: scores of padding are masked.
    """
    hidden = problem.mask.hidden()
    visibility = Visibility.of_pairs(problem.mask, hidden, problem.key.shape[1])
    scores, key_shift = unmasked_scores(visibility.cleaned(problem) if torch.is_grad_enabled() else problem)
    if hidden is not None and visibility.queries is not None:
        hidden = hidden & visibility.queries.unsqueeze(-1)
    if hidden is not None:  # in place as in `add`
        scores = (
            scores.masked_fill(hidden, -torch.inf) if under_torch_func() else scores.masked_fill_(hidden, -torch.inf)
        )
    return scores, visibility, key_shift


def unmasked_scores(problem: Problem) -> tuple[Scores, Float[Tensor, "#B #Hq #Lq"] | None]:
    """S' - c, with what a float mask adds, of all pairs, hidden ones too; and c, None for 0."""
    scores, key_shift = _scores(problem), None
    if problem.softcap is not None:
        scores = problem.softcap * torch.tanh(scores / problem.softcap)
    if problem.key_bias is not None:
        a, key_shift = lowered(problem)
        scores = add(scores, a.unsqueeze(-2) - key_shift.unsqueeze(-1))
    added = problem.mask.added()
    if added is not None:
        scores = add(scores, added.to(scores.dtype))
    return scores, key_shift


def _scores(problem: Problem) -> Scores:
    """S_ij = scale * (q_i . k_j + r_i . RK[d] + RQ[d] . k_j) + b[d]."""
    dtype = problem.score_dtype()
    query = problem.query.to(dtype) * problem.scale
    scores = key_products(query, problem.key)
    for axis in problem.axes:
        positions = axis.positions
        if axis.relative_keys is not None:
            arranged = arrange_by_query(axis.relative_keys, positions, dtype, collects=torch.is_grad_enabled())
            r = query if axis.relative_query is None else axis.relative_query.to(dtype) * problem.scale
            scores = arranged.added(scores, row_products(r, arranged.rows))
        if axis.relative_queries is not None:
            scores = add(scores, _relative_query_products(problem, axis.relative_queries, positions))
        if axis.bias is not None:
            arranged = arrange_by_query(axis.bias, positions, dtype, collects=torch.is_grad_enabled())
            scores = arranged.added(scores, arranged.bias_strip(positions.query_length))
    return scores


def _relative_query_products(problem: Problem, table: OffsetTable, positions: Positions) -> Scores:
    """scale * RQ[d] . k_j: for one query each key's own row; else a strip with one row per key, of Lq + Lk - 1 numbers.

    With few queries the keys are taken one block at a time, because a strip for all keys would be quadratic in the
    keys. A compiled graph takes no blocks, because it would depend on the lengths.
    """
    dtype = problem.score_dtype()
    key = problem.key.to(dtype) * problem.scale
    key = key if problem.num_groups() == 1 else key.repeat_interleave(problem.num_groups(), dim=1)
    if positions.query_length == 1 and positions.origin is not None:
        rows = table.to(dtype).rows(positions.origin, positions.key_length)
        return (key * rows).sum(-1).unsqueeze(-2)
    at_once = max(positions.query_length, KEYS_AT_ONCE)
    if torch.compiler.is_compiling() or positions.key_length <= 2 * at_once:
        return _strip_products(key, table, positions)
    queries = slice(0, positions.query_length)
    parts = [slice(first, min(first + at_once, key.shape[2])) for first in range(0, key.shape[2], at_once)]
    blocks = [_strip_products(key[:, :, keys], table, positions.part(queries, keys)) for keys in parts]
    return torch.cat(blocks, dim=-1)


def _strip_products(key: Float[Tensor, "B H Lk D"], table: OffsetTable, positions: Positions) -> Scores:
    """RQ[d] . k_j by a strip of all of these keys."""
    arranged = arrange_by_key(table, positions, key.dtype)
    return arranged.spread(row_products(key, arranged.rows)).transpose(-1, -2)
