"""The numbers of a row that the backward pass has beside the call, and its sums over offsets beyond a table."""

from __future__ import annotations

from typing import NamedTuple

import triton
import triton.language as tl
from torch import Tensor

from relattn.backends.triton.device.bands import ONE, each_query, groups_of, load_numbers
from relattn.backends.triton.device.clip_regions import AFTER, BEFORE
from relattn.backends.triton.host.call import Call
from relattn.backends.triton.host.kernel_args import Rows
from relattn.backends.triton.host.pack import beyond, wanted_tables
from relattn.backends.triton.host.replay import new_memory
from relattn.equation.problem import Differentiable


class BackwardInputs(NamedTuple):
    """What each kernel of the backward pass gets beside the call: dO, and numbers of rows [B, Hq, Lq] in float32.

    maximum, total: as in `Forward`. delta: None where no kernel but that of the queries asks for it.
    """

    grad_output: Rows
    maximum: Tensor
    total: Tensor
    delta: Tensor | None


class Sides(NamedTuple):
    """Sums over the offsets before a table's first row, and after its last: [2, B, Hq, L] in float32.

    For relative keys and bias they are a query's sums of dS, for relative values a query's sums of P, for relative
    queries a key's sums of dS. None where no visible offset lies there, or nothing is added there.
    """

    relative_keys: Tensor | None
    relative_queries: Tensor | None
    relative_values: Tensor | None
    bias: Tensor | None


def sides_of(call: Call, wanted: Differentiable[bool]) -> Sides:
    """Memory for the sums that the gradients of the wanted tables need."""

    def sums(name: str, length: int) -> Tensor | None:
        table = tables.get(name)
        if table is None or table.zero or not beyond(call, table):
            return None
        is_added_to = name == "relative_queries"
        return new_memory(call.query, (2, *call.query.shape[:2], length), zeros=is_added_to)

    tables, queries, keys = wanted_tables(call, wanted), call.query.shape[2], call.key.shape[2]
    return Sides(
        relative_keys=sums("relative_keys", queries),
        relative_queries=sums("relative_queries", keys),
        relative_values=sums("relative_values", queries),
        bias=sums("bias", queries),
    )


@triton.jit
def load_softmax(inputs, start, first, count, TILE: tl.constexpr, GROUPS: tl.constexpr = ONE):
    """m and n, for P = 2^(S - m) * n, of the rows from `first` of the head at `start`: the maximum, and 1 / total.

    m is 0 where a row saw no key (its S are -inf).
    """
    maximum = load_numbers(inputs.maximum + start, first, count, TILE, GROUPS)
    total = load_numbers(inputs.total + start, first, count, TILE, GROUPS)
    return tl.where(maximum == float("-inf"), 0.0, maximum), 1.0 / tl.where(total == 0.0, 1.0, total)


@triton.jit
def weights_of(scores, maximum, share):
    """P from S and the numbers of `load_softmax`."""
    return tl.exp2(scores - tl.expand_dims(maximum, -1)) * tl.expand_dims(share, -1)


@triton.jit
def score_gradients(x, keep, weights, by_weight, delta):
    """P and dS of a tile, above the cap, pairs [i, j] in float32, from weights and by_weight, the P and dP without
    dropout. keep: the pairs that dropout keeps.
    """
    dropped = weights
    if x.dropout is not None:
        dropped = tl.where(keep, weights * x.dropout.factor, 0.0)
        by_weight = tl.where(keep, by_weight, 0.0) * x.dropout.factor
    return dropped, weights * (by_weight - tl.expand_dims(delta, -1))


@triton.jit
def side_sums(beyond, values, table, offset, REGION: tl.constexpr, AXIS: tl.constexpr, TILE: tl.constexpr):
    """The sums (before, after) beyond both ends of a clipped table, with those of one more tile; offset: that of its
    first query and first key.

    Before and after, all pairs count. Within, each side is asked for by itself: offsets made once for both would be
    held in registers, and spill others.
    """
    before, after = beyond
    if REGION == BEFORE:
        before += tl.sum(values, axis=AXIS)
    elif REGION == AFTER:
        after += tl.sum(values, axis=AXIS)
    else:
        GROUPS: tl.constexpr = groups_of(values.shape)
        if offset - (GROUPS * TILE - 1) < table.first:
            offsets = offset + tl.arange(0, TILE)[None, :] - tl.expand_dims(each_query(TILE, GROUPS), -1)
            before += tl.sum(tl.where(offsets < table.first, values, 0.0), axis=AXIS)
        if offset + TILE - 1 >= table.first + table.rows:
            offsets = offset + tl.arange(0, TILE)[None, :] - tl.expand_dims(each_query(TILE, GROUPS), -1)
            after += tl.sum(tl.where(offsets >= table.first + table.rows, values, 0.0), axis=AXIS)
    return before, after


@triton.jit
def store_sides(at, beyond, row, num_rows, first, count, TILE: tl.constexpr, GROUPS: tl.constexpr = ONE):
    """The sums of the rows from `first`; `row` counts the heads of all batch elements."""
    before, after = beyond
    place = first + each_query(TILE, GROUPS)
    start = at + row.to(tl.int64) * count
    tl.store(start + place, before, mask=place < count)
    tl.store(start + num_rows.to(tl.int64) * count + place, after, mask=place < count)
