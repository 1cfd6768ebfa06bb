"""dq and dr of one program, and its share of every other gradient: it owns a tile of queries, and walks over the keys.

    dq_i = scale * sum_j dS_ij k_j       dr_i = scale * sum_j dS_ij RK[d]

S and dP are computed once. With relative keys a tile takes 8 products of two tiles (r . RK and dr carry a half along),
and 5 beyond a clipped table. Where the pass is deterministic, the program computes dq and dr alone.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import triton
import triton.language as tl

from relattn.backends.triton.device.atomic_add import add_band, add_bias, add_rows, add_sides, first_row
from relattn.backends.triton.device.axes import added_to_axes, store_r, zeros_of_r
from relattn.backends.triton.device.backward_inputs import load_softmax, side_sums, store_sides
from relattn.backends.triton.device.bands import (
    INTERPRETED,
    band_sum,
    dot,
    each_query,
    edge_sum,
    flatten_groups,
    head_of,
    load_edge,
    load_numbers,
    load_rows,
    may_own_several,
    padded,
    place,
    store_rows,
    zeros_of_rows,
)
from relattn.backends.triton.device.blocks import with_sums
from relattn.backends.triton.device.clip_regions import AFTER, first_region, holds_too_much, is_constant, keys_of
from relattn.backends.triton.device.device_starts import load_starts
from relattn.backends.triton.device.dropout import dropout_keeps_in_tile
from relattn.backends.triton.device.explicit import KEYS, QUERIES
from relattn.backends.triton.device.recompute import Queries, first_halves, recompute_gradients, recompute_weights
from relattn.backends.triton.device.skew import columns_from_pairs, joined_from_pairs, shared_half


class Sums(NamedTuple):
    """What a program sums over the keys: dq, dr (None where r is q), dS and P before and after the rows of tables, and
    `AxisRGradient` of each axis.
    """

    query: Any
    relative: Any
    keys_beyond: Any
    values_beyond: Any
    bias_beyond: Any
    r_gradients: Any


@triton.jit
def queries_kernel(
    x, inputs, output, grad_lse, sides, grad_query, grad_relative, grad_of_axes, buffers,
    D: tl.constexpr, DV: tl.constexpr, DR: tl.constexpr, TILE: tl.constexpr, GROUPS: tl.constexpr,
):  # fmt: skip
    """dq, dr and delta of GROUPS tiles of queries in one head, and their share of what is summed across programs.

    output: O, contiguous; grad_lse: dlse [B, Hq, Lq] in float32.
    """
    tl.static_assert(GROUPS == 1 or may_own_several(x), "these terms are computed for one tile of queries")
    x = load_starts(x)
    OWNED: tl.constexpr = GROUPS * TILE
    programs = tl.cdiv(x.queries, OWNED)
    program = tl.program_id(0)
    row, rows = program // programs, tl.num_programs(0) // programs
    batch, head = row // x.heads, row % x.heads
    first_query = (programs - 1 - program % programs) * OWNED

    q = load_rows(place(x.q, batch, head), x.q.row, first_query, x.queries, D, TILE, GROUPS)
    r, by_relative = q, None
    if x.r is not None:
        r = load_rows(place(x.r, batch, head), x.r.row, first_query, x.queries, DR, TILE, GROUPS)
        by_relative = zeros_of_rows(padded(DR), TILE, GROUPS)
    output_at = head_of(output, row, x.queries, DV)
    output_rows = load_rows(output_at, DV, first_query, x.queries, DV, TILE, GROUPS)
    grad_at = place(inputs.grad_output, batch, head)
    grad_output = load_rows(grad_at, inputs.grad_output.row, first_query, x.queries, DV, TILE, GROUPS)

    numbers = row.to(tl.int64) * x.queries
    query = first_query + each_query(TILE, GROUPS)
    delta = tl.sum(output_rows.to(tl.float32) * grad_output.to(tl.float32), axis=-1)
    delta -= load_numbers(grad_lse + numbers, first_query, x.queries, TILE, GROUPS)
    if inputs.delta is not None:
        tl.store(inputs.delta + numbers + query, delta, mask=query < x.queries)
    maximum, share = load_softmax(inputs, numbers, first_query, x.queries, TILE, GROUPS)

    queries = Queries(batch, head, first_query, q, r, grad_output, delta, maximum, share)
    if GROUPS > 1:  # once more, as the factors of a product over all rows
        q = load_rows(place(x.q, batch, head), x.q.row, first_query, x.queries, D, OWNED)
        grad_output = load_rows(grad_at, inputs.grad_output.row, first_query, x.queries, DV, OWNED)
    nothing = tl.zeros_like(delta), tl.zeros_like(delta)
    by_query = zeros_of_rows(padded(D), TILE, GROUPS)
    sums = Sums(by_query, by_relative, nothing, nothing, nothing, zeros_of_r(x, TILE))
    for REGION in tl.static_range(first_region(x), 3):
        sums = walk_keys(
            x, sides, buffers, queries, q, grad_output, sums, rows, REGION, D, DV, DR, TILE, GROUPS
        )  # fmt: skip

    at = head_of(grad_query, row, x.queries, D)
    store_rows(at, D, first_query, x.queries, sums.query * x.scale, D, TILE)
    if x.r is not None:
        at = head_of(grad_relative, row, x.queries, DR)
        store_rows(at, DR, first_query, x.queries, sums.relative * x.scale, DR, TILE)
    store_r(x, grad_of_axes, sums.r_gradients, row, rows, first_query, TILE)
    if sides.relative_keys is not None:
        store_sides(sides.relative_keys, sums.keys_beyond, row, rows, first_query, x.queries, TILE, GROUPS)
    if sides.relative_values is not None:
        store_sides(sides.relative_values, sums.values_beyond, row, rows, first_query, x.queries, TILE, GROUPS)
    if sides.bias is not None:
        store_sides(sides.bias, sums.bias_beyond, row, rows, first_query, x.queries, TILE, GROUPS)


@triton.jit
def _zeros_for(half):
    """Zeros instead of the products of a band's half. They lie over the threads as products do, and so do then the
    tiles that are rotated into their place: a product takes these from registers.
    """
    return tl.zeros_like(half) if INTERPRETED else tl.minimum(tl.abs(half), 0.0)


@triton.jit
def walk_keys(
    x, sides, buffers, queries, all_q, all_grad_output, sums, rows, REGION: tl.constexpr,
    D: tl.constexpr, DV: tl.constexpr, DR: tl.constexpr, TILE: tl.constexpr, GROUPS: tl.constexpr,
):  # fmt: skip
    """The sums, with those over the keys of one region. all_q, all_grad_output: rows of all queries, [n, width]; rows:
    the heads of all batch elements.
    """
    batch, head, first_query, _, r, grad_output, _, _, _ = queries
    by_query, by_relative, keys_beyond, values_beyond, bias_beyond, r_gradients = sums
    row = batch * x.heads + head
    key_row = row // x.group  # of all batch elements' heads of keys
    k_at, v_at = place(x.k, batch, head // x.group), place(x.v, batch, head // x.group)
    first_key, end_key = keys_of(x, batch, head, first_query, REGION, GROUPS * TILE, TILE)
    band = x.offset + first_key - first_query - (TILE - 1)

    # r RK^T and dO RV^T by the left half of the first band
    of_keys, of_values = first_halves(x, queries, first_key, REGION, DV, DR, TILE, True)
    if x.relative_keys is not None:
        if is_constant(x.relative_keys, REGION):
            constant = tl.zeros_like(queries.delta)  # the share of a row that holds for all pairs
        else:
            scores_joined = _zeros_for(of_keys).to(k_at.dtype.element_ty)
    if x.relative_values is not None and not is_constant(x.relative_values, REGION):
        weights_joined = _zeros_for(of_values).to(v_at.dtype.element_ty)
    if x.bias is not None and not is_constant(x.bias, REGION):
        bias_joined = zeros_of_rows(TILE, TILE, GROUPS)
    IN_EACH: tl.constexpr = holds_too_much(x, D, DV)
    for start in tl.range(first_key, end_key, TILE, disable_licm=IN_EACH):
        # S = scale * (q k^T + r RK^T + k RQ^T) + b, then P
        k = load_rows(k_at, x.k.row, start, x.keys, D, TILE)
        keep = dropout_keeps_in_tile(x, batch, head, first_query, start, TILE)
        weights, slope, of_keys = recompute_weights(x, queries, of_keys, start, k, REGION, D, DR, TILE)
        # dP = dO v^T + dO RV^T, then dS' = P * (dP - delta)
        v = load_rows(v_at, x.v.row, start, x.keys, DV, TILE)  # not before: registers would be held for it
        weights, scores, of_values = recompute_gradients(
            x, queries, of_values, start, keep, weights, v, REGION, DV, TILE
        )  # fmt: skip
        # da += dS'^T 1, then dS = dS' * (1 - tanh^2)
        if buffers.terms.key_bias is not None:
            key = start + tl.arange(0, TILE)
            at = buffers.terms.key_bias + row.to(tl.int64) * x.keys + key
            tl.atomic_add(at, tl.sum(flatten_groups(scores), axis=0), mask=key < x.keys, sem="relaxed")
        if x.softcap is not None:
            scores *= slope

        # the sums of dS and of P beyond both ends of a clipped table
        offset = x.offset + start - first_query
        if sides.relative_keys is not None:
            keys_beyond = side_sums(keys_beyond, scores, x.relative_keys, offset, REGION, -1, TILE)
        if sides.relative_values is not None:
            values_beyond = side_sums(values_beyond, weights, x.relative_values, offset, REGION, -1, TILE)
        if sides.bias is not None:
            bias_beyond = side_sums(bias_beyond, scores, x.bias, offset, REGION, -1, TILE)
        # db += dS along the band; dr, dRK, dRQ, dRV and db of the other axes
        if buffers.terms.bias is not None and not is_constant(x.bias, REGION):
            last, bias_joined = bias_joined, joined_from_pairs(scores, TILE)
            add_bias(buffers.terms.bias, x.bias, head, band, shared_half(bias_joined, last, TILE), TILE)
        r_gradients = added_to_axes(x, buffers.axes, r_gradients, queries, start, k, weights, scores, D, DV, TILE)
        # dv += P^T dO
        if buffers.value is not None:
            weights = weights.to(v.dtype)
            at = first_row(buffers.value, key_row, x.keys, DV)
            add_rows(at, start, x.keys, dot(tl.trans(flatten_groups(weights)), all_grad_output), DV, TILE)
        # dRV += P^T dO along the band
        if buffers.terms.relative_values is not None and not is_constant(x.relative_values, REGION):
            last, weights_joined = weights_joined, joined_from_pairs(weights, TILE)
            half = shared_half(weights_joined, last, TILE)
            add_band(buffers.terms.relative_values, x.relative_values, head, band, half, grad_output, DV, TILE)
        # the sums of dS^T beyond both ends of relative queries
        if buffers.terms.relative_queries is not None and sides.relative_queries is not None:
            nothing = tl.zeros((TILE,), tl.float32)
            beyond = side_sums((nothing, nothing), scores, x.relative_queries, offset, REGION, 0, TILE)
            add_sides(sides.relative_queries, beyond, row, rows, start, x.keys, TILE)

        # dq += dS RK and dk += dS^T RQ of explicit axes; dk += dS^T RQ by the one row beyond a clipped table
        by_query = with_sums(x, batch, head, first_query, start, scores, by_query, KEYS, D, TILE)
        if buffers.key is not None:
            by_key = tl.zeros((TILE, padded(D)), tl.float32)
            by_key = with_sums(x, batch, head, first_query, start, scores, by_key, QUERIES, D, TILE)
            if is_constant(x.relative_queries, REGION):
                by_key += edge_sum(tl.trans(scores), x.relative_queries, head, REGION == AFTER, D)
        # dk += dS^T q, dk += dS^T RQ and dRQ += dS k along the band
        scores = scores.to(k.dtype)
        if buffers.key is not None:
            by_key += dot(tl.trans(flatten_groups(scores)), all_q)
            if x.relative_queries is not None and not is_constant(x.relative_queries, REGION):
                near, far = columns_from_pairs(scores, TILE)
                near, far = tl.trans(near), tl.trans(far)
                by_key += band_sum(near, x.relative_queries, head, band, D, TILE)
                by_key += band_sum(far, x.relative_queries, head, band + TILE, D, TILE)
                if buffers.terms.relative_queries is not None:
                    add_band(buffers.terms.relative_queries, x.relative_queries, head, band, near, k, D, TILE)
                    add_band(buffers.terms.relative_queries, x.relative_queries, head, band + TILE, far, k, D, TILE)
            at = first_row(buffers.key, key_row, x.keys, D)
            add_rows(at, start, x.keys, by_key * x.scale, D, TILE)
        # dq += dS k, dr += dS RK and dRK += dS^T r along the band
        by_query += dot(scores, k)
        if is_constant(x.relative_keys, REGION):
            constant += tl.sum(scores.to(tl.float32), axis=-1)
        elif x.relative_keys is not None:
            last, scores_joined = scores_joined, joined_from_pairs(scores, TILE)
            half = shared_half(scores_joined, last, TILE)
            step = band_sum(half, x.relative_keys, head, band, DR, TILE)
            if x.r is not None:
                by_relative += step
            else:
                by_query += step
            if buffers.terms.relative_keys is not None:
                add_band(buffers.terms.relative_keys, x.relative_keys, head, band, half, r, DR, TILE)
        band += TILE

    if first_key < end_key:  # what is left: the right half of the last band, or the share of a constant row
        if x.relative_keys is not None:
            if is_constant(x.relative_keys, REGION):
                step = tl.expand_dims(constant, -1) * load_edge(x.relative_keys, head, REGION == AFTER, DR)[None, :]
            else:
                half = shared_half(tl.zeros_like(scores_joined), scores_joined, TILE)
                step = band_sum(half, x.relative_keys, head, band, DR, TILE)
                if buffers.terms.relative_keys is not None:
                    add_band(buffers.terms.relative_keys, x.relative_keys, head, band, half, r, DR, TILE)
            if x.r is not None:
                by_relative += step
            else:
                by_query += step
        if buffers.terms.relative_values is not None and not is_constant(x.relative_values, REGION):
            half = shared_half(tl.zeros_like(weights_joined), weights_joined, TILE)
            add_band(buffers.terms.relative_values, x.relative_values, head, band, half, grad_output, DV, TILE)
        if buffers.terms.bias is not None and not is_constant(x.bias, REGION):
            half = shared_half(tl.zeros_like(bias_joined), bias_joined, TILE)
            add_bias(buffers.terms.bias, x.bias, head, band, half, TILE)
    return Sums(by_query, by_relative, keys_beyond, values_beyond, bias_beyond, r_gradients)
