"""S_ij of a tile in base 2, S * log2(e). Every kernel computes it here, so that all have the same weights."""

from __future__ import annotations

import triton
import triton.language as tl

from relattn.backends.triton.bands import band_product, load_bias
from relattn.backends.triton.masks import in_reach, visible
from relattn.backends.triton.skew import pairs_from_columns, pairs_from_rows

LOG2_E = tl.constexpr(1.4426950408889634)


@triton.jit
def by_queries(rows, table, head, band, WIDTH: tl.constexpr, TILE: tl.constexpr):
    """x_i . table[d_ij] for rows x_i, as pairs [i, j]; band: the offset of the last query and the first key."""
    left = band_product(rows, table, head, band, WIDTH, TILE)
    right = band_product(rows, table, head, band + TILE, WIDTH, TILE)
    return pairs_from_rows(left, right, TILE)


@triton.jit
def by_keys(rows, table, head, band, WIDTH: tl.constexpr, TILE: tl.constexpr):
    """table[d_ij] . y_j for rows y_j, as pairs [i, j]."""
    left = band_product(rows, table, head, band, WIDTH, TILE)
    right = band_product(rows, table, head, band + TILE, WIDTH, TILE)
    return pairs_from_columns(tl.trans(left), tl.trans(right), TILE)


@triton.jit
def finished(x, batch, head, i, j, products, every):
    """S * log2(e) from the sum of the products; -inf where a pair does not attend.

    every: whether all of these pairs are visible by their offsets. If so, and without masks, there is nothing to look
        up.
    """
    scores = products * (x.scale * LOG2_E)
    if x.bias.at is not None:
        scores += LOG2_E * load_bias(x.bias, head, x.offset + j - i)
    if x.mask.keep is not None or x.mask.query_ids is not None or x.mask.pairs is not None or not every:
        scores = tl.where(visible(x, batch, head, i, j), scores, float("-inf"))
    return scores


@triton.jit
def finished_tile(x, batch, head, first_query, first_key, products, TILE: tl.constexpr):
    """`finished`, for a tile of queries and keys."""
    i, j = first_query + tl.arange(0, TILE)[:, None], first_key + tl.arange(0, TILE)[None, :]
    last_query, last_key = first_query + TILE - 1, first_key + TILE - 1
    lowest, highest = x.offset + first_key - last_query, x.offset + last_key - first_query
    every = in_reach(x, last_query, first_key, last_key, lowest, highest)
    return finished(x, batch, head, i, j, products, every)
