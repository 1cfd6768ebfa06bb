"""The forward pass: O_i = sum_j softmax(S)_ij * (v_j + RV[d]), one tile of queries per program, over tiles of keys."""

from __future__ import annotations

import math

import triton
import triton.language as tl

from relattn.backends.problem_operator import Forward
from relattn.backends.triton.device.bands import (
    band_sum,
    dot,
    each_query,
    edge_sum,
    head_of,
    load_rows,
    may_own_several,
    padded,
    place,
    split_groups,
    store_rows,
    zeros_of_rows,
)
from relattn.backends.triton.device.blocks import with_products, with_sums
from relattn.backends.triton.device.clip_regions import AFTER, first_region, is_constant, keys_of
from relattn.backends.triton.device.device_starts import load_starts
from relattn.backends.triton.device.dropout import dropout_keeps_in_tile
from relattn.backends.triton.device.explicit import VALUES
from relattn.backends.triton.device.scores import LOG2_E, by_keys, finish_tile_scores, first_half, with_band
from relattn.backends.triton.device.skew import joined_from_pairs, shared_half
from relattn.backends.triton.host.autotune import launch
from relattn.backends.triton.host.call import Call, answers_of
from relattn.backends.triton.host.pack import pack
from relattn.backends.triton.kernels.decoding import MAX_QUERIES, few_queries


def forward(call: Call) -> Forward:
    """The kernels' answers, for few queries or in tiles.

    Before a backward pass always in tiles: both then sum a score in one order, and its weight is the same at any size.
    """
    if call.query.shape[2] <= MAX_QUERIES and not call.for_backward:
        return few_queries(call)
    batch, heads, queries = call.query.shape[:3]
    answers = answers_of(call)
    arguments = pack(call), *answers
    launch(forward_kernel, call, lambda owned: math.ceil(queries / owned) * batch * heads, arguments)
    return answers


@triton.jit
def forward_kernel(
    x, output, lse, maxima, totals,
    D: tl.constexpr, DV: tl.constexpr, DR: tl.constexpr, TILE: tl.constexpr, GROUPS: tl.constexpr,
):  # fmt: skip
    """GROUPS tiles of queries in one head; x: `KernelArgs`; the others: `Forward`."""
    tl.static_assert(GROUPS == 1 or may_own_several(x), "these terms are computed for one tile of queries")
    x = load_starts(x)
    QUERIES: tl.constexpr = GROUPS * TILE
    programs = tl.cdiv(x.queries, QUERIES)
    program = tl.program_id(0)
    row = program // programs
    batch, head = row // x.heads, row % x.heads
    first_query = (programs - 1 - program % programs) * QUERIES  # with causality the longest rows first

    k_at, v_at = place(x.k, batch, head // x.group), place(x.v, batch, head // x.group)
    q = split_groups(load_rows(place(x.q, batch, head), x.q.row, first_query, x.queries, D, QUERIES), GROUPS)
    query = first_query + each_query(TILE, GROUPS)
    maximum = tl.full(query.shape, float("-inf"), tl.float32)
    total = tl.zeros(query.shape, tl.float32)
    weighted = zeros_of_rows(padded(DV), TILE, GROUPS)

    r = q
    if x.r is not None:
        r = load_rows(place(x.r, batch, head), x.r.row, first_query, x.queries, DR, QUERIES)
        r = split_groups(r, GROUPS)
    for REGION in tl.static_range(first_region(x), 3):
        first_key, end_key = keys_of(x, batch, head, first_query, REGION, QUERIES, TILE)
        band = x.offset + first_key - first_query - (TILE - 1)
        if x.relative_keys is not None:
            left = first_half(r, x.relative_keys, head, band, REGION, DR, TILE)
        if x.relative_values is not None and not is_constant(x.relative_values, REGION):
            joined = zeros_of_rows(TILE, TILE, GROUPS)
        for start in range(first_key, end_key, TILE):
            k = load_rows(k_at, x.k.row, start, x.keys, D, TILE)
            products = dot(q, tl.trans(k))
            if x.relative_keys is not None:
                products, left = with_band(products, left, r, x.relative_keys, head, band, REGION, DR, TILE)
            if x.relative_queries is not None:
                products += by_keys(k, x.relative_queries, head, band, REGION, D, TILE)
            products = with_products(x, batch, head, first_query, start, q, k, products, D, TILE)
            scores, _ = finish_tile_scores(x, batch, head, first_query, start, products, REGION, TILE)

            before, maximum = maximum, tl.maximum(maximum, tl.max(scores, axis=-1))
            shift = tl.where(maximum == float("-inf"), 0.0, maximum)  # nothing visible yet: 2^(-inf - 0) = 0
            weights, older = tl.exp2(scores - tl.expand_dims(shift, -1)), tl.exp2(before - shift)
            total = total * older + tl.sum(weights, axis=-1)
            if x.dropout is not None:
                weights = tl.where(dropout_keeps_in_tile(x, batch, head, first_query, start, TILE), weights, 0.0)
            v = load_rows(v_at, x.v.row, start, x.keys, DV, TILE)
            weighted = weighted * tl.expand_dims(older, -1) + dot(weights.to(v.dtype), v)
            weighted = with_sums(x, batch, head, first_query, start, weights, weighted, VALUES, DV, TILE)
            if x.relative_values is not None:
                if is_constant(x.relative_values, REGION):
                    weighted += edge_sum(weights, x.relative_values, head, REGION == AFTER, DV)
                else:
                    last, joined = joined * tl.expand_dims(older, -1), joined_from_pairs(weights, TILE)
                    half = shared_half(joined, last, TILE).to(v.dtype)
                    weighted += band_sum(half, x.relative_values, head, band, DV, TILE)
            band += TILE
        if x.relative_values is not None and not is_constant(x.relative_values, REGION) and first_key < end_key:
            half = shared_half(tl.zeros_like(joined), joined, TILE).to(x.v.at.dtype.element_ty)
            weighted += band_sum(half, x.relative_values, head, band, DV, TILE)

    if x.dropout is not None:
        weighted *= x.dropout.factor
    numbers = row.to(tl.int64) * x.queries + query
    tl.store(maxima + numbers, maximum, mask=query < x.queries)
    tl.store(totals + numbers, total, mask=query < x.queries)
    total = tl.where(total == 0.0, 1.0, total)  # a row that saw no key: output 0, lse -inf
    weighted /= tl.expand_dims(total, -1)
    store_rows(head_of(output, row, x.queries, DV), DV, first_query, x.queries, weighted, DV, TILE)
    tl.store(lse + numbers, (maximum + tl.log2(total)) / LOG2_E, mask=query < x.queries)
