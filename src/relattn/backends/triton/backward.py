"""The backward pass: tiles are computed again, and nothing larger than the inputs is kept.

    delta_i = dO_i . O_i - dlse_i        dP_ij = dO_i . (v_j + RV[d])        dS_ij = P_ij * (dP_ij - delta_i)
    dq_i = scale * sum_j dS_ij k_j       dr_i = scale * sum_j dS_ij RK[d]
    dv_j = sum_i P_ij dO_i               dk_j = scale * sum_i dS_ij (q_i + RQ[d])

One kernel walks over the keys of a tile of queries, for dq and dr. The other walks over the queries of a tile of keys,
for dk and dv. So every number is summed by one program in one order. With dropout P_ij and dP_ij carry its factor,
except the P in dS.
"""

from __future__ import annotations

import math
from collections.abc import Collection

import torch
import triton
import triton.language as tl
from jaxtyping import Float
from torch import Tensor

from relattn.backends.triton.bands import (
    band_product,
    band_sum,
    dot,
    load_numbers,
    load_rows,
    padded,
    place,
    store_rows,
)
from relattn.backends.triton.call import Call, Gradients
from relattn.backends.triton.inputs import inputs, rows
from relattn.backends.triton.known import Known, load_lse, side_sums, sides_of, store_sides
from relattn.backends.triton.masks import kept, key_tiles, query_tiles
from relattn.backends.triton.scores import by_keys, by_queries, finished_tile
from relattn.backends.triton.sizes import launch
from relattn.backends.triton.skew import columns_from_pairs, pairs_from_rows, rows_from_pairs
from relattn.backends.triton.tables import table_gradients


def backward(
    call: Call,
    output: Float[Tensor, "B Hq Lq Dv"],
    lse: Float[Tensor, "B Hq Lq"],
    grad_output: Float[Tensor, "B Hq Lq Dv"],
    grad_lse: Float[Tensor, "B Hq Lq"],
    wanted: Collection[str] = Gradients._fields,
) -> Gradients:
    """The gradients by the call's tensors and tables, each in its dtype; tables only if they are `wanted`."""
    batch, heads, queries = call.query.shape[:3]
    keys, key_heads = call.key.shape[2], call.key.shape[1]
    x, sides = inputs(call), sides_of(call, wanted)
    known = Known(
        rows(output),
        rows(grad_output.to(call.query.dtype)),
        lse.contiguous(),
        grad_lse.to(torch.float32).contiguous(),
        lse.new_empty(lse.shape),
    )
    query, key, value = (t.new_empty(t.shape) for t in (call.query, call.key, call.value))
    relative = None if call.relative_query is None else call.relative_query.new_empty(call.relative_query.shape)

    arguments = x, known, sides, rows(query), rows(relative)
    launch(queries_kernel, call, lambda tile: math.ceil(queries / tile) * batch * heads, arguments)
    arguments = x, known, sides, rows(key), rows(value)
    launch(keys_kernel, call, lambda tile: math.ceil(keys / tile) * batch * key_heads, arguments)
    return Gradients(query, key, value, relative, **table_gradients(call, x, known, sides, wanted))


@triton.jit
def score_gradients(x, batch, head, i, j, weights, by_weight, delta):
    """P and dS of a tile from the P of dS and from dP, pairs [i, j] in float32: both P differ by what dropout takes."""
    dropped = weights
    if x.seed is not None:
        factors = kept(x, batch, head, i, j)
        dropped, by_weight = weights * factors, by_weight * factors
    return dropped, weights * (by_weight - delta[:, None])


@triton.jit
def queries_kernel(
    x, known, sides, grad_query, grad_relative,
    D: tl.constexpr, DV: tl.constexpr, DR: tl.constexpr, TILE: tl.constexpr,
):  # fmt: skip
    """dq, dr and delta of one tile of queries under one head."""
    tiles = tl.cdiv(x.queries, TILE)
    program = tl.program_id(0)
    row = program // tiles
    batch, head = row // x.heads, row % x.heads
    first_query = (tiles - 1 - program % tiles) * TILE

    q = load_rows(place(x.q, batch, head), x.q.row, first_query, x.queries, D, TILE)
    r = q
    if x.r.at is not None:
        r = load_rows(place(x.r, batch, head), x.r.row, first_query, x.queries, DR, TILE)
    k_at, v_at = place(x.k, batch, head // x.group), place(x.v, batch, head // x.group)
    output = load_rows(place(known.output, batch, head), known.output.row, first_query, x.queries, DV, TILE)
    grad_at = place(known.grad_output, batch, head)
    grad_output = load_rows(grad_at, known.grad_output.row, first_query, x.queries, DV, TILE)

    numbers = row.to(tl.int64) * x.queries
    query = first_query + tl.arange(0, TILE)
    delta = tl.sum(output.to(tl.float32) * grad_output.to(tl.float32), axis=1)
    delta -= load_numbers(known.grad_lse + numbers, first_query, x.queries, TILE)
    tl.store(known.delta + numbers + query, delta, mask=query < x.queries)
    lse = load_lse(known, numbers, first_query, x.queries, TILE)

    by_query = tl.zeros((TILE, padded(D)), tl.float32)
    if x.r.at is not None:
        by_relative = tl.zeros((TILE, padded(DR)), tl.float32)
    nothing = tl.zeros((TILE,), tl.float32)
    keys_before, keys_after = nothing, nothing
    values_before, values_after = nothing, nothing
    bias_before, bias_after = nothing, nothing

    first_key, end_key = key_tiles(x, first_query, TILE)
    band = x.offset + first_key - first_query - (TILE - 1)
    if x.relative_keys.at is not None and x.relative_values.at is None:
        left = band_product(r, x.relative_keys, head, band, DR, TILE)
    for start in range(first_key, end_key, TILE):
        j = start + tl.arange(0, TILE)[None, :]
        k = load_rows(k_at, x.k.row, start, x.keys, D, TILE)
        v = load_rows(v_at, x.v.row, start, x.keys, DV, TILE)
        products = dot(q, tl.trans(k))
        if x.relative_keys.at is not None and x.relative_values.at is None:
            right = band_product(r, x.relative_keys, head, band + TILE, DR, TILE)
            products += pairs_from_rows(left, right, TILE)
            left = right  # of the next tile of keys
        elif x.relative_keys.at is not None:  # with relative values, a half that is carried along would spill registers
            products += by_queries(r, x.relative_keys, head, band, DR, TILE)
        if x.relative_queries.at is not None:
            products += by_keys(k, x.relative_queries, head, band, D, TILE)
        weights = tl.exp2(finished_tile(x, batch, head, first_query, start, products, TILE) - lse[:, None])
        by_weight = dot(grad_output, tl.trans(v))
        if x.relative_values.at is not None:
            by_weight += by_queries(grad_output, x.relative_values, head, band, DV, TILE)
        weights, scores = score_gradients(x, batch, head, query[:, None], j, weights, by_weight, delta)

        offset = x.offset + start - first_query
        if sides.relative_keys is not None:
            keys_before, keys_after = side_sums(keys_before, keys_after, scores, x.relative_keys, offset, 1, TILE)
        if sides.relative_values is not None:
            values_before, values_after = side_sums(
                values_before, values_after, weights, x.relative_values, offset, 1, TILE
            )
        if sides.bias is not None:
            bias_before, bias_after = side_sums(bias_before, bias_after, scores, x.bias, offset, 1, TILE)
        scores = scores.to(k.dtype)
        by_query += dot(scores, k)
        if x.relative_keys.at is not None:
            near, far = rows_from_pairs(scores, TILE)
            step = band_sum(near, x.relative_keys, head, band, DR, TILE)
            step += band_sum(far, x.relative_keys, head, band + TILE, DR, TILE)
            if x.r.at is not None:
                by_relative += step
            else:
                by_query += step
        band += TILE

    store_rows(place(grad_query, batch, head), grad_query.row, first_query, x.queries, by_query * x.scale, D, TILE)
    if x.r.at is not None:
        at = place(grad_relative, batch, head)
        store_rows(at, grad_relative.row, first_query, x.queries, by_relative * x.scale, DR, TILE)
    rows = tl.num_programs(0) // tiles
    if sides.relative_keys is not None:
        store_sides(sides.relative_keys, keys_before, keys_after, row, rows, first_query, x.queries, TILE)
    if sides.relative_values is not None:
        store_sides(sides.relative_values, values_before, values_after, row, rows, first_query, x.queries, TILE)
    if sides.bias is not None:
        store_sides(sides.bias, bias_before, bias_after, row, rows, first_query, x.queries, TILE)


@triton.jit
def keys_kernel(
    x, known, sides, grad_key, grad_value,
    D: tl.constexpr, DV: tl.constexpr, DR: tl.constexpr, TILE: tl.constexpr,
):  # fmt: skip
    """dk and dv of one tile of keys under one key head: all of its query heads, one after the other."""
    tiles = tl.cdiv(x.keys, TILE)
    program = tl.program_id(0)
    key_heads = x.heads // x.group
    batch, key_head = program // tiles // key_heads, program // tiles % key_heads
    first_key = program % tiles * TILE

    k = load_rows(place(x.k, batch, key_head), x.k.row, first_key, x.keys, D, TILE)
    v = load_rows(place(x.v, batch, key_head), x.v.row, first_key, x.keys, DV, TILE)
    by_key = tl.zeros((TILE, padded(D)), tl.float32)
    by_value = tl.zeros((TILE, padded(DV)), tl.float32)
    first_query, end_query = query_tiles(x, first_key, TILE)
    for member in range(0, x.group):
        head = key_head * x.group + member
        row = batch * x.heads + head
        q_at, grad_at = place(x.q, batch, head), place(known.grad_output, batch, head)
        numbers = row.to(tl.int64) * x.queries
        before, after = tl.zeros((TILE,), tl.float32), tl.zeros((TILE,), tl.float32)
        for start in range(first_query, end_query, TILE):
            q = load_rows(q_at, x.q.row, start, x.queries, D, TILE)
            r = q
            if x.r.at is not None:
                r = load_rows(place(x.r, batch, head), x.r.row, start, x.queries, DR, TILE)
            grad_output = load_rows(grad_at, known.grad_output.row, start, x.queries, DV, TILE)
            lse = load_lse(known, numbers, start, x.queries, TILE)
            delta = load_numbers(known.delta + numbers, start, x.queries, TILE)

            band = x.offset + first_key - start - (TILE - 1)
            products = dot(q, tl.trans(k))
            if x.relative_keys.at is not None:
                products += by_queries(r, x.relative_keys, head, band, DR, TILE)
            if x.relative_queries.at is not None:
                products += by_keys(k, x.relative_queries, head, band, D, TILE)
            i, j = start + tl.arange(0, TILE)[:, None], first_key + tl.arange(0, TILE)[None, :]
            weights = tl.exp2(finished_tile(x, batch, head, start, first_key, products, TILE) - lse[:, None])
            by_weight = dot(grad_output, tl.trans(v))
            if x.relative_values.at is not None:
                by_weight += by_queries(grad_output, x.relative_values, head, band, DV, TILE)
            weights, scores = score_gradients(x, batch, head, i, j, weights, by_weight, delta)

            if sides.relative_queries is not None:
                before, after = side_sums(
                    before, after, scores, x.relative_queries, x.offset + first_key - start, 0, TILE
                )
            by_value += dot(tl.trans(weights.to(v.dtype)), grad_output)
            scores = scores.to(k.dtype)
            by_key += dot(tl.trans(scores), q)
            if x.relative_queries.at is not None:
                near, far = columns_from_pairs(scores, TILE)
                by_key += band_sum(tl.trans(near), x.relative_queries, head, band, D, TILE)
                by_key += band_sum(tl.trans(far), x.relative_queries, head, band + TILE, D, TILE)
        if sides.relative_queries is not None:
            rows = tl.num_programs(0) // tiles * x.group
            store_sides(sides.relative_queries, before, after, row, rows, first_key, x.keys, TILE)

    at = place(grad_key, batch, key_head)
    store_rows(at, grad_key.row, first_key, x.keys, by_key * x.scale, D, TILE)
    store_rows(place(grad_value, batch, key_head), grad_value.row, first_key, x.keys, by_value, DV, TILE)
