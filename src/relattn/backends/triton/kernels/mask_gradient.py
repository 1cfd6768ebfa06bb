"""The gradient by a mask that is added to the scores, summed over the axes along which the mask broadcasts.

    dM_ij = dS_ij,    dS above the cap

A program owns a tile of the mask's gradient, and walks over the tiles of pairs that read it. S and dP are computed
again. No sum is divided among programs, so none needs an atomic addition.
"""

# pyright: reportGeneralTypeIssues=false

from __future__ import annotations

import math

import triton
import triton.language as tl

from relattn.backends.triton.device.bands import load_rows, place
from relattn.backends.triton.device.clip_regions import first_region, keys_of
from relattn.backends.triton.device.device_starts import load_starts
from relattn.backends.triton.device.dropout import dropout_keeps_in_tile
from relattn.backends.triton.device.recompute import first_halves, load_queries, recompute_gradients, recompute_weights
from relattn.backends.triton.host.call import Call
from relattn.backends.triton.host.kernel_args import Pairs


def memory_of_mask(call: Call) -> Pairs:
    """Memory for dM, in the shape and dtype of the mask."""
    assert call.pair_mask is not None
    gradient = call.pair_mask.new_empty(call.pair_mask.shape)
    return Pairs(gradient, *(None if size == 1 else gradient.stride(n) for n, size in enumerate(gradient.shape)))


def programs_of_mask(into: Pairs, tile: int) -> int:
    """The number of programs that sum it."""
    batches, heads, queries, keys = into.at.shape
    return batches * heads * math.ceil(queries / tile) * math.ceil(keys / tile)


@triton.jit
def mask_kernel(
    x, inputs, into, batches,
    D: tl.constexpr, DV: tl.constexpr, DR: tl.constexpr, TILE: tl.constexpr,
):  # fmt: skip
    """`sum_pairs` of one program; into: `Pairs`, no step along an axis on which the mask has one number for all."""
    sum_pairs(load_starts(x), inputs, into, batches, tl.program_id(0), D, DV, DR, TILE)


@triton.jit
def sum_pairs(
    x, inputs, into, batches, program,
    D: tl.constexpr, DV: tl.constexpr, DR: tl.constexpr, TILE: tl.constexpr,
):  # fmt: skip
    """One tile of dM."""
    own_key, program = _own(program, into.key, x.keys, TILE)
    own_query, program = _own(program, into.query, x.queries, TILE)
    own_head, own_batch = _own(program, into.head, x.heads, 1)
    heads, end_query = 1, own_query + TILE
    if into.head is None:
        heads = x.heads
    if into.batch is not None:
        batches = 1
    if into.query is None:
        end_query = x.queries

    total = tl.zeros((TILE, TILE), tl.float32)
    for member in range(0, batches * heads):
        batch, head = own_batch + member // heads, own_head + member % heads
        k_at, v_at = place(x.k, batch, head // x.group), place(x.v, batch, head // x.group)
        for first_query in range(own_query, end_query, TILE):
            queries = load_queries(x, inputs, batch, head, first_query, D, DV, DR, TILE)
            for REGION in tl.static_range(first_region(x), 3):
                start, end_key = keys_of(x, batch, head, first_query, REGION, TILE, TILE)
                if into.key is not None:
                    start, end_key = tl.maximum(start, own_key), tl.minimum(end_key, own_key + TILE)
                if start < end_key:
                    of_keys, of_values = first_halves(x, queries, start, REGION, DV, DR, TILE)
                    for first_key in range(start, end_key, TILE):
                        k = load_rows(k_at, x.k.row, first_key, x.keys, D, TILE)
                        weights, _, of_keys = recompute_weights(
                            x, queries, of_keys, first_key, k, REGION, D, DR, TILE
                        )  # fmt: skip
                        # Always. Beside q . k the compiler would lay both products along the queries, with too few for
                        # all warps.
                        if first_key < end_key:
                            v = load_rows(v_at, x.v.row, first_key, x.keys, DV, TILE)
                            keep = dropout_keeps_in_tile(x, batch, head, first_query, first_key, TILE)
                            weights, scores, of_values = recompute_gradients(
                                x, queries, of_values, first_key, keep, weights, v, REGION, DV, TILE
                            )  # fmt: skip
                            total += scores

    at, i, j = into.at, own_query + tl.arange(0, TILE), own_key + tl.arange(0, TILE)
    if into.batch is not None:
        at += own_batch.to(tl.int64) * into.batch
    if into.head is not None:
        at += own_head.to(tl.int64) * into.head
    if into.query is None:
        total, i = tl.sum(total, axis=0, keep_dims=True), tl.arange(0, 1)
    else:
        at += i.to(tl.int64)[:, None] * into.query
    if into.key is None:
        total, j = tl.sum(total, axis=1, keep_dims=True), tl.arange(0, 1)
    else:
        at += j.to(tl.int64)[None, :] * into.key
    inside = (i[:, None] < x.queries) & (j[None, :] < x.keys)
    tl.store(at + 0 * (i[:, None] + j[None, :]), total.to(into.at.dtype.element_ty), mask=inside)


@triton.jit
def _own(program, step, size, EACH: tl.constexpr):
    """Where a program's part of an axis begins, of EACH places at most, and its number among those of other axes."""
    first, others = program * 0, program
    if step is not None:
        count = tl.cdiv(size, EACH)
        first, others = program % count * EACH, program // count
    return first, others
