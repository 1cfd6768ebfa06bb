"""dk, dv and da without an addition across programs: one program owns a tile of keys, and walks over the queries.

    dv_j = sum_i P_ij dO_i               dk_j = scale * sum_i dS_ij (q_i + RQ[d])       da_j = sum_i dS_ij

S and dP of every tile are computed again. The query heads that share the keys come one after the other.
"""

from __future__ import annotations

import triton
import triton.language as tl

from relattn.backends.triton.again import pairs_again
from relattn.backends.triton.bands import band_sum, dot, edge_sum, head_of, load_rows, padded, place, store_rows
from relattn.backends.triton.known import side_sums, store_sides
from relattn.backends.triton.listed import with_key_gradient
from relattn.backends.triton.skew import columns_from_pairs
from relattn.backends.triton.starts import started
from relattn.backends.triton.stretches import AFTER, first_stretch, is_constant, queries_of


@triton.jit
def keys_kernel(
    x, known, sides, grad_key, grad_value, grad_key_bias,
    D: tl.constexpr, DV: tl.constexpr, DR: tl.constexpr, TILE: tl.constexpr,
):  # fmt: skip
    """dk, dv and da of one tile of keys under one key head: all of its query heads, one after the other."""
    x = started(x)
    tiles = tl.cdiv(x.keys, TILE)
    program = tl.program_id(0)
    key_heads = x.heads // x.group
    batch, key_head = program // tiles // key_heads, program // tiles % key_heads
    first_key = program % tiles * TILE

    k = load_rows(place(x.k, batch, key_head), x.k.row, first_key, x.keys, D, TILE)
    v = load_rows(place(x.v, batch, key_head), x.v.row, first_key, x.keys, DV, TILE)
    by_key = tl.zeros((TILE, padded(D)), tl.float32)
    by_value = tl.zeros((TILE, padded(DV)), tl.float32)
    for member in range(0, x.group):
        head = key_head * x.group + member
        row = batch * x.heads + head
        before, after = tl.zeros((TILE,), tl.float32), tl.zeros((TILE,), tl.float32)
        by_key_bias = tl.zeros((TILE,), tl.float32)
        for STRETCH in tl.static_range(first_stretch(x), 3):
            first_query, end_query = queries_of(x, first_key, STRETCH, TILE)
            for start in range(first_query, end_query, TILE):
                q, grad_output, weights, scores, slope = pairs_again(
                    x, known, batch, head, start, first_key, k, v, STRETCH, D, DV, DR, TILE
                )  # fmt: skip
                if grad_key_bias is not None:
                    by_key_bias += tl.sum(scores, axis=0)
                if x.softcap is not None:
                    scores *= slope

                offset = x.offset + first_key - start
                if sides.relative_queries is not None:
                    before, after = side_sums(before, after, scores, x.relative_queries, offset, STRETCH, 0, TILE)
                by_value += dot(tl.trans(weights.to(v.dtype)), grad_output)
                i, j = start + tl.arange(0, TILE)[:, None], first_key + tl.arange(0, TILE)[None, :]
                by_key = with_key_gradient(x, batch, head, i, j, scores, by_key, D)
                if is_constant(x.relative_queries, STRETCH):
                    by_key += edge_sum(tl.trans(scores), x.relative_queries, head, STRETCH == AFTER, D)
                scores = scores.to(k.dtype)
                by_key += dot(tl.trans(scores), q)
                if x.relative_queries is not None and not is_constant(x.relative_queries, STRETCH):
                    near, far = columns_from_pairs(scores, TILE)
                    band = offset - (TILE - 1)
                    by_key += band_sum(tl.trans(near), x.relative_queries, head, band, D, TILE)
                    by_key += band_sum(tl.trans(far), x.relative_queries, head, band + TILE, D, TILE)
        if grad_key_bias is not None:
            key = first_key + tl.arange(0, TILE)
            tl.store(grad_key_bias + row.to(tl.int64) * x.keys + key, by_key_bias, mask=key < x.keys)
        if sides.relative_queries is not None:
            rows = tl.num_programs(0) // tiles * x.group
            store_sides(sides.relative_queries, before, after, row, rows, first_key, x.keys, TILE)

    key_row = program // tiles
    store_rows(head_of(grad_key, key_row, x.keys, D), D, first_key, x.keys, by_key * x.scale, D, TILE)
    store_rows(head_of(grad_value, key_row, x.keys, DV), DV, first_key, x.keys, by_value, DV, TILE)
