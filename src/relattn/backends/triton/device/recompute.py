"""P and dS of one tile of queries and keys, computed again."""

# pyright: reportAssignmentType=false

from __future__ import annotations

from typing import Any, NamedTuple

import triton
import triton.language as tl

from relattn.backends.triton.device.backward_inputs import load_softmax, score_gradients, weights_of
from relattn.backends.triton.device.bands import NO, dot, load_numbers, load_rows, place
from relattn.backends.triton.device.blocks import with_products, with_values
from relattn.backends.triton.device.dropout import dropout_keeps_in_tile
from relattn.backends.triton.device.scores import by_keys, finish_tile_scores, first_half, with_band


class Queries(NamedTuple):
    """What a program has of a tile of queries: rows of q, r and dO, and numbers of each."""

    batch: Any
    head: Any
    first: Any
    q: Any
    r: Any
    grad_output: Any
    delta: Any
    maximum: Any
    share: Any


class Halves(NamedTuple):
    """r . RK and dO . RV for the left half of a tile's band, which is the right half of the tile of keys before.

    None without such a table.
    """

    keys: Any
    values: Any


@triton.jit
def load_queries(
    x, inputs, batch, head, first, D: tl.constexpr, DV: tl.constexpr, DR: tl.constexpr, TILE: tl.constexpr
):  # fmt: skip
    """The tile of queries from `first`, in a kernel that does not compute delta."""
    q = load_rows(place(x.q, batch, head), x.q.row, first, x.queries, D, TILE)
    r = q
    if x.r is not None:
        r = load_rows(place(x.r, batch, head), x.r.row, first, x.queries, DR, TILE)
    grad_output = load_rows(place(inputs.grad_output, batch, head), inputs.grad_output.row, first, x.queries, DV, TILE)
    numbers = (batch * x.heads + head).to(tl.int64) * x.queries
    maximum, share = load_softmax(inputs, numbers, first, x.queries, TILE)
    delta = load_numbers(inputs.delta + numbers, first, x.queries, TILE)
    return Queries(batch, head, first, q, r, grad_output, delta, maximum, share)


@triton.jit
def first_halves(
    x, queries, first_key, REGION: tl.constexpr, DV: tl.constexpr, DR: tl.constexpr, TILE: tl.constexpr,
    ALONE: tl.constexpr = NO,
):  # fmt: skip
    """What a walk over the keys from `first_key` begins with. REGION: where it lies beside the clipped tables. ALONE:
    whether no other products are computed in the same place.
    """
    band = x.offset + first_key - queries.first - (TILE - 1)
    of_keys, of_values = None, None
    # Of wide rows in float32 the compiler spills less with a tall one: on sm_80, at 256 features and with relative keys
    # alone, nothing in place of 1,516 bytes.
    WIDE: tl.constexpr = x.k.at.dtype.element_ty == tl.float32 and DR > 64
    TALL: tl.constexpr = ALONE and x.relative_keys is not None and (x.relative_values is not None or WIDE)
    if x.relative_keys is not None:
        of_keys = first_half(queries.r, x.relative_keys, queries.head, band, REGION, DR, TILE, TALL)
    if x.relative_values is not None:
        of_values = first_half(queries.grad_output, x.relative_values, queries.head, band, REGION, DV, TILE, TALL)
    return Halves(of_keys, of_values)


@triton.jit
def recompute_weights(
    x, queries, of_keys, first_key, k, REGION: tl.constexpr, D: tl.constexpr, DR: tl.constexpr,
    TILE: tl.constexpr,
):  # fmt: skip
    """P without dropout, pairs [i, j] in float32; the slope of the cap; what `Halves.keys` is for the next tile."""
    batch, head, first_query, q, r, _, _, maximum, share = queries
    band = x.offset + first_key - first_query - (TILE - 1)
    products = dot(q, tl.trans(k))
    if x.relative_keys is not None:
        products, of_keys = with_band(
            products, of_keys, r, x.relative_keys, head, band, REGION, DR, TILE, True
        )  # fmt: skip
    if x.relative_queries is not None:
        products += by_keys(k, x.relative_queries, head, band, REGION, D, TILE)
    products = with_products(x, batch, head, first_query, first_key, q, k, products, D, TILE)
    scores, slope = finish_tile_scores(x, batch, head, first_query, first_key, products, REGION, TILE)
    return weights_of(scores, maximum, share), slope, of_keys


@triton.jit
def recompute_gradients(
    x, queries, of_values, first_key, keep, weights, v, REGION: tl.constexpr, DV: tl.constexpr, TILE: tl.constexpr
):  # fmt: skip
    """P and dS above the cap, from P without dropout; what `Halves.values` is for the next tile of keys."""
    batch, head, first_query, _, _, grad_output, delta, _, _ = queries
    band = x.offset + first_key - first_query - (TILE - 1)
    by_weight = dot(grad_output, tl.trans(v))
    if x.relative_values is not None:
        by_weight, of_values = with_band(
            by_weight, of_values, grad_output, x.relative_values, head, band, REGION, DV, TILE, True
        )
    by_weight = with_values(x, batch, head, first_query, first_key, grad_output, by_weight, DV, TILE)
    weights, scores = score_gradients(x, keep, weights, by_weight, delta)
    return weights, scores, of_values


@triton.jit
def recompute_pairs(
    x, queries, halves, first_key, k, v, REGION: tl.constexpr,
    D: tl.constexpr, DV: tl.constexpr, DR: tl.constexpr, TILE: tl.constexpr,
):  # fmt: skip
    """P and dS above the cap, pairs [i, j] in float32; the slope of the cap; the halves for the next tile of keys."""
    keep = dropout_keeps_in_tile(x, queries.batch, queries.head, queries.first, first_key, TILE)
    of_keys, of_values = halves
    weights, slope, of_keys = recompute_weights(x, queries, of_keys, first_key, k, REGION, D, DR, TILE)
    weights, scores, of_values = recompute_gradients(
        x, queries, of_values, first_key, keep, weights, v, REGION, DV, TILE
    )  # fmt: skip
    return weights, scores, slope, Halves(of_keys, of_values)
