"""The backward pass: tiles are computed again, and nothing larger than the inputs is kept.

    delta_i = dO_i . O_i - dlse_i        dP_ij = dO_i . (v_j + RV[d])        dS_ij = P_ij * (dP_ij - delta_i)
    dq_i = scale * sum_j dS_ij k_j       dr_i = scale * sum_j dS_ij RK[d]
    dv_j = sum_i P_ij dO_i               dk_j = scale * sum_i dS_ij (q_i + RQ[d])       da_j = sum_i dS_ij
                                                                                        dM_ij = dS_ij

With a cap dS is multiplied by its slope, 1 - tanh^2, in all but the last two.

A program owns a tile of queries, and walks over the keys. dq and dr stay on chip. What other programs add to as well,
dk, dv and the gradients of the tables, is added to memory in float32, tile by tile, by atomic instructions. S and dP
are computed once: with relative keys these are 8 products of two tiles (r . RK and dr carry a half along).

The gradient by a mask that is added has a kernel of its own (mask_gradient.py).

Atomic additions have no fixed order. Under `torch.use_deterministic_algorithms(True)` the same kernel computes dq and
dr alone, and two others (keys.py, tables.py) sum the rest with one program for each number. Then the bits are the same
on every run with the same sizes of tiles. With dropout P_ij and dP_ij carry its factor, except the P in dS.
"""

from __future__ import annotations

import math
from collections.abc import Collection

import torch
import triton
import triton.language as tl
from jaxtyping import Float
from torch import Tensor

from relattn.backends.triton.across import Across, add_band, add_bias, add_rows, add_sides, memory_for
from relattn.backends.triton.axes import gradients_of_axes
from relattn.backends.triton.bands import (
    band_product,
    band_sum,
    dot,
    head_of,
    load_numbers,
    load_rows,
    padded,
    place,
    store_rows,
)
from relattn.backends.triton.call import Answers, Call, Gradients
from relattn.backends.triton.dropout import kept_in_tile
from relattn.backends.triton.inputs import has_wide_tables, inputs, rows
from relattn.backends.triton.keys import keys_kernel
from relattn.backends.triton.known import (
    Known,
    load_lse,
    score_gradients,
    side_sums,
    sides_of,
    store_sides,
    weights_of,
)
from relattn.backends.triton.listed import with_key_gradient, with_query_gradient, with_values
from relattn.backends.triton.mask_gradient import mask_gradient
from relattn.backends.triton.masks import key_tiles
from relattn.backends.triton.scores import by_keys, finished_tile
from relattn.backends.triton.sizes import launch
from relattn.backends.triton.skew import columns_from_pairs, joined_from_pairs, pairs_from_rows, shared_half
from relattn.backends.triton.starts import started
from relattn.backends.triton.tables import sums_of_tables, table_gradient
from relattn.score.problem import TABLES


def backward(
    call: Call,
    answers: Answers,
    grad_output: Float[Tensor, "B Hq Lq Dv"],
    grad_lse: Float[Tensor, "B Hq Lq"],
    wanted: Collection[str] = Gradients._fields,
) -> Gradients:
    """The gradients by the call's tensors and tables, each in its dtype; tables and mask only if they are `wanted`."""
    batch, heads, queries = call.query.shape[:3]
    ordered, of_mask = is_ordered(call), "explicit_mask" in wanted and call.adds_mask
    x, sides = inputs(call), sides_of(call, wanted)
    known = Known(
        output=answers.output.contiguous(),
        grad_output=rows(grad_output.to(call.query.dtype)),
        lse=answers.lse.contiguous(),
        maximum=None if answers.maximum is None else answers.maximum.contiguous(),
        total=None if answers.total is None else answers.total.contiguous(),
        grad_lse=grad_lse.to(torch.float32).contiguous(),
        delta=answers.lse.new_empty(answers.lse.shape) if ordered or of_mask or call.axes else None,
    )
    query = call.query.new_empty(call.query.shape)
    relative = None if call.relative_query is None else call.relative_query.new_empty(call.relative_query.shape)
    found = {} if ordered else memory_for(call, wanted)

    def programs(tile: int) -> int:
        return math.ceil(queries / tile) * batch * heads

    arguments = x, known, sides, query, relative, Across.of(found)
    added = [*found.values(), *([] if sides.relative_queries is None else [sides.relative_queries])]
    launch(queries_kernel, call, programs, arguments, added=added)
    if ordered:
        found = {name: getattr(call, name).new_empty(getattr(call, name).shape) for name in ("key", "value")}
        if "key_bias" in wanted and call.key_bias is not None:
            found["key_bias"] = call.key_bias.new_empty(call.key_bias.shape)
        into = found["key"], found["value"], found.get("key_bias")
        keys, key_heads = call.key.shape[2], call.key.shape[1]
        launch(keys_kernel, call, lambda tile: math.ceil(keys / tile) * batch * key_heads, (x, known, sides, *into))
        found |= sums_of_tables(call, x, known, wanted)
    key_bias = found.get("key_bias")
    tables = {name: table_gradient(call, known, sides, name, found[name]) if name in found else None for name in TABLES}
    key, value = found["key"].to(call.key.dtype), found["value"].to(call.value.dtype)
    mask = mask_gradient(call, x, known) if of_mask else None
    axes = gradients_of_axes(call, x, known, wanted, ordered=ordered)
    return Gradients(query, key, value, relative, **tables, key_bias=key_bias, explicit_mask=mask, axes=axes)


def is_ordered(call: Call) -> bool:
    """Whether one program sums each number: where determinism is asked for, and where wide tables leave a program no
    room for every gradient.
    """
    return has_wide_tables(call) or torch.are_deterministic_algorithms_enabled()


@triton.jit
def queries_kernel(
    x, known, sides, grad_query, grad_relative, across,
    D: tl.constexpr, DV: tl.constexpr, DR: tl.constexpr, TILE: tl.constexpr,
):  # fmt: skip
    """dq, dr and delta of one tile of queries under one head, and its share of what is summed `across` programs."""
    x = started(x)
    tiles = tl.cdiv(x.queries, TILE)
    program = tl.program_id(0)
    row = program // tiles
    batch, head = row // x.heads, row % x.heads
    first_query = (tiles - 1 - program % tiles) * TILE

    q = load_rows(place(x.q, batch, head), x.q.row, first_query, x.queries, D, TILE)
    r = q
    if x.r is not None:
        r = load_rows(place(x.r, batch, head), x.r.row, first_query, x.queries, DR, TILE)
    k_at, v_at = place(x.k, batch, head // x.group), place(x.v, batch, head // x.group)
    key_row = row // x.group  # of all batch elements' heads of keys
    output = load_rows(head_of(known.output, row, x.queries, DV), DV, first_query, x.queries, DV, TILE)
    grad_at = place(known.grad_output, batch, head)
    grad_output = load_rows(grad_at, known.grad_output.row, first_query, x.queries, DV, TILE)

    numbers = row.to(tl.int64) * x.queries
    query = first_query + tl.arange(0, TILE)
    delta = tl.sum(output.to(tl.float32) * grad_output.to(tl.float32), axis=1)
    delta -= load_numbers(known.grad_lse + numbers, first_query, x.queries, TILE)
    if known.delta is not None:
        tl.store(known.delta + numbers + query, delta, mask=query < x.queries)
    lse, share = load_lse(known, numbers, first_query, x.queries, TILE)

    by_query = tl.zeros((TILE, padded(D)), tl.float32)
    if x.r is not None:
        by_relative = tl.zeros((TILE, padded(DR)), tl.float32)
    nothing = tl.zeros((TILE,), tl.float32)
    keys_before, keys_after = nothing, nothing
    values_before, values_after = nothing, nothing
    bias_before, bias_after = nothing, nothing

    first_key, end_key = key_tiles(x, first_query, TILE)
    band = x.offset + first_key - first_query - (TILE - 1)
    if x.relative_keys is not None:
        left = band_product(r, x.relative_keys, head, band, DR, TILE)
        scores_joined = tl.zeros((TILE, TILE), k_at.dtype.element_ty)
    if x.relative_values is not None:
        values_left = band_product(grad_output, x.relative_values, head, band, DV, TILE)
    if across.relative_values is not None:
        weights_joined = tl.zeros((TILE, TILE), v_at.dtype.element_ty)
    if across.bias is not None:
        bias_joined = tl.zeros((TILE, TILE), tl.float32)
    for start in range(first_key, end_key, TILE):
        j = start + tl.arange(0, TILE)[None, :]
        keep = kept_in_tile(x, batch, head, first_query, start, TILE)
        k = load_rows(k_at, x.k.row, start, x.keys, D, TILE)
        v = load_rows(v_at, x.v.row, start, x.keys, DV, TILE)
        products = dot(q, tl.trans(k))
        if x.relative_keys is not None:
            right = band_product(r, x.relative_keys, head, band + TILE, DR, TILE)
            products += pairs_from_rows(left, right, TILE)
            left = right  # of the next tile of keys
        if x.relative_queries is not None:
            products += by_keys(k, x.relative_queries, head, band, D, TILE)
        scores, slope = finished_tile(x, batch, head, first_query, start, products, TILE)
        weights = weights_of(known, scores, lse, share)
        by_weight = dot(grad_output, tl.trans(v))
        if x.relative_values is not None:
            values_right = band_product(grad_output, x.relative_values, head, band + TILE, DV, TILE)
            by_weight += pairs_from_rows(values_left, values_right, TILE)
            values_left = values_right
        by_weight = with_values(x, known.grad_output, batch, head, query[:, None], j, by_weight)
        weights, scores = score_gradients(x, keep, weights, by_weight, delta)
        if across.key_bias is not None:
            key = start + tl.arange(0, TILE)
            at = across.key_bias + row.to(tl.int64) * x.keys + key
            tl.atomic_add(at, tl.sum(scores, axis=0), mask=key < x.keys, sem="relaxed")
        if x.softcap is not None:
            scores *= slope

        offset = x.offset + start - first_query
        if sides.relative_keys is not None:
            keys_before, keys_after = side_sums(keys_before, keys_after, scores, x.relative_keys, offset, 1, TILE)
        if sides.relative_values is not None:
            values_before, values_after = side_sums(
                values_before, values_after, weights, x.relative_values, offset, 1, TILE
            )
        if sides.bias is not None:
            bias_before, bias_after = side_sums(bias_before, bias_after, scores, x.bias, offset, 1, TILE)
        if across.bias is not None:
            last, bias_joined = bias_joined, joined_from_pairs(scores, TILE)
            add_bias(across.bias, x.bias, head, band, shared_half(bias_joined, last, TILE), TILE)
        if across.value is not None:
            weights = weights.to(v.dtype)
            at = head_of(across.value, key_row, x.keys, DV)
            add_rows(at, start, x.keys, dot(tl.trans(weights), grad_output), DV, TILE)
        if across.relative_values is not None:
            last, weights_joined = weights_joined, joined_from_pairs(weights, TILE)
            half = shared_half(weights_joined, last, TILE)
            add_band(across.relative_values, x.relative_values, head, band, half, grad_output, DV, TILE)
        if across.relative_queries is not None and sides.relative_queries is not None:
            before, after = side_sums(nothing, nothing, scores, x.relative_queries, offset, 0, TILE)
            add_sides(sides.relative_queries, before, after, row, tl.num_programs(0) // tiles, start, x.keys, TILE)

        by_query = with_query_gradient(x, batch, head, query[:, None], j, scores, by_query, D)
        if across.key is not None:
            of_axes = with_key_gradient(
                x, batch, head, query[:, None], j, scores, tl.zeros((TILE, padded(D)), tl.float32), D
            )
        scores = scores.to(k.dtype)
        by_query += dot(scores, k)
        if x.relative_keys is not None:
            last, scores_joined = scores_joined, joined_from_pairs(scores, TILE)
            half = shared_half(scores_joined, last, TILE)
            step = band_sum(half, x.relative_keys, head, band, DR, TILE)
            if x.r is not None:
                by_relative += step
            else:
                by_query += step
            if across.relative_keys is not None:
                add_band(across.relative_keys, x.relative_keys, head, band, half, r, DR, TILE)
        if across.key is not None:
            by_key = of_axes + dot(tl.trans(scores), q)
            if x.relative_queries is not None:
                near, far = columns_from_pairs(scores, TILE)
                by_key += band_sum(tl.trans(near), x.relative_queries, head, band, D, TILE)
                by_key += band_sum(tl.trans(far), x.relative_queries, head, band + TILE, D, TILE)
                if across.relative_queries is not None:
                    add_band(across.relative_queries, x.relative_queries, head, band, tl.trans(near), k, D, TILE)
                    add_band(across.relative_queries, x.relative_queries, head, band + TILE, tl.trans(far), k, D, TILE)
            at = head_of(across.key, key_row, x.keys, D)
            add_rows(at, start, x.keys, by_key * x.scale, D, TILE)
        band += TILE

    # The right half of the last tile's band.
    if x.relative_keys is not None:
        half = shared_half(tl.zeros((TILE, TILE), scores_joined.dtype), scores_joined, TILE)
        step = band_sum(half, x.relative_keys, head, band, DR, TILE)
        if x.r is not None:
            by_relative += step
        else:
            by_query += step
        if across.relative_keys is not None:
            add_band(across.relative_keys, x.relative_keys, head, band, half, r, DR, TILE)
    if across.relative_values is not None:
        half = shared_half(tl.zeros((TILE, TILE), weights_joined.dtype), weights_joined, TILE)
        add_band(across.relative_values, x.relative_values, head, band, half, grad_output, DV, TILE)
    if across.bias is not None:
        half = shared_half(tl.zeros((TILE, TILE), tl.float32), bias_joined, TILE)
        add_bias(across.bias, x.bias, head, band, half, TILE)
    at = head_of(grad_query, row, x.queries, D)
    store_rows(at, D, first_query, x.queries, by_query * x.scale, D, TILE)
    if x.r is not None:
        at = head_of(grad_relative, row, x.queries, DR)
        store_rows(at, DR, first_query, x.queries, by_relative * x.scale, DR, TILE)
    rows = tl.num_programs(0) // tiles
    if sides.relative_keys is not None:
        store_sides(sides.relative_keys, keys_before, keys_after, row, rows, first_query, x.queries, TILE)
    if sides.relative_values is not None:
        store_sides(sides.relative_values, values_before, values_after, row, rows, first_query, x.queries, TILE)
    if sides.bias is not None:
        store_sides(sides.bias, bias_before, bias_after, row, rows, first_query, x.queries, TILE)
