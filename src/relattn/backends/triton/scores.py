"""S_ij of a tile in base 2, S * log2(e): every kernel computes it here, so that all see the same weights."""

from __future__ import annotations

import triton
import triton.language as tl

from relattn.backends.triton.bands import band_product, load_bias
from relattn.backends.triton.masks import visible
from relattn.backends.triton.skew import pairs_from_columns, pairs_from_rows

LOG2_E = tl.constexpr(1.4426950408889634)


@triton.jit
def by_queries(rows, table, head, band, WIDTH: tl.constexpr, TILE: tl.constexpr):
    """x_i . table[d_ij] of rows x_i, as pairs [i, j]; band: the offset of the last query and the first key."""
    left = band_product(rows, table, head, band, WIDTH, TILE)
    right = band_product(rows, table, head, band + TILE, WIDTH, TILE)
    return pairs_from_rows(left, right, TILE)


@triton.jit
def by_keys(rows, table, head, band, WIDTH: tl.constexpr, TILE: tl.constexpr):
    """table[d_ij] . y_j of rows y_j, as pairs [i, j]."""
    left = band_product(rows, table, head, band, WIDTH, TILE)
    right = band_product(rows, table, head, band + TILE, WIDTH, TILE)
    return pairs_from_columns(tl.trans(left), tl.trans(right), TILE)


@triton.jit
def finished(x, batch, head, i, j, products):
    """S * log2(e) from the sum of the products; -inf where a pair does not attend."""
    scores = products * (x.scale * LOG2_E)
    if x.bias.at is not None:
        scores += LOG2_E * load_bias(x.bias, head, x.offset + j - i)
    return tl.where(visible(x, batch, head, i, j), scores, float("-inf"))
