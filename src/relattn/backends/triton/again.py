"""P and dS of one tile of queries and keys, computed again, for kernels that carry nothing from tile to tile."""

from __future__ import annotations

import triton
import triton.language as tl

from relattn.backends.triton.bands import dot, load_numbers, load_rows, place
from relattn.backends.triton.dropout import kept_in_tile
from relattn.backends.triton.known import load_lse, score_gradients, weights_of
from relattn.backends.triton.listed import with_values
from relattn.backends.triton.scores import by_keys, by_queries, finished_tile


@triton.jit
def pairs_again(
    x, known, batch, head, first_query, first_key, k, v, STRETCH: tl.constexpr,
    D: tl.constexpr, DV: tl.constexpr, DR: tl.constexpr, TILE: tl.constexpr,
):  # fmt: skip
    """The rows of q and dO; P and dS above the cap, pairs [i, j] in float32; the slope of the cap.

    STRETCH: where the tile lies beside the clipped tables.
    """
    keep = kept_in_tile(x, batch, head, first_query, first_key, TILE)
    q = load_rows(place(x.q, batch, head), x.q.row, first_query, x.queries, D, TILE)
    r = q
    if x.r is not None:
        r = load_rows(place(x.r, batch, head), x.r.row, first_query, x.queries, DR, TILE)
    grad_at = place(known.grad_output, batch, head)
    grad_output = load_rows(grad_at, known.grad_output.row, first_query, x.queries, DV, TILE)
    numbers = (batch * x.heads + head).to(tl.int64) * x.queries
    lse, share = load_lse(known, numbers, first_query, x.queries, TILE)
    delta = load_numbers(known.delta + numbers, first_query, x.queries, TILE)

    band = x.offset + first_key - first_query - (TILE - 1)
    products = dot(q, tl.trans(k))
    if x.relative_keys is not None:
        products += by_queries(r, x.relative_keys, head, band, STRETCH, DR, TILE)
    if x.relative_queries is not None:
        products += by_keys(k, x.relative_queries, head, band, STRETCH, D, TILE)
    scores, slope = finished_tile(x, batch, head, first_query, first_key, products, STRETCH, TILE)
    weights = weights_of(known, scores, lse, share)
    by_weight = dot(grad_output, tl.trans(v))
    if x.relative_values is not None:
        by_weight += by_queries(grad_output, x.relative_values, head, band, STRETCH, DV, TILE)
    i, j = first_query + tl.arange(0, TILE)[:, None], first_key + tl.arange(0, TILE)[None, :]
    by_weight = with_values(x, known.grad_output, batch, head, i, j, by_weight)
    weights, scores = score_gradients(x, keep, weights, by_weight, delta)
    return q, grad_output, weights, scores, slope
