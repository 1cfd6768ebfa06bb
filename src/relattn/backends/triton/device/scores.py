"""S_ij of a tile in base 2, S * log2(e). Every kernel computes it here, so that all have the same weights."""

from __future__ import annotations

import triton
import triton.language as tl

from relattn.backends.triton.device.bands import (
    NO,
    band_product,
    dot,
    each_query,
    edge_product,
    groups_of,
    load_band,
)
from relattn.backends.triton.device.biases import load_edge_bias, with_bias
from relattn.backends.triton.device.clip_regions import AFTER, is_constant
from relattn.backends.triton.device.explicit import with_biases
from relattn.backends.triton.device.masks import in_reach, pairs_at, visible
from relattn.backends.triton.device.skew import pairs_from_columns, pairs_from_rows

LOG2_E = tl.constexpr(1.4426950408889634)
LARGEST = tl.constexpr(3.4028234663852886e38)


@triton.jit
def first_half(
    rows, table, head, band, REGION: tl.constexpr, WIDTH: tl.constexpr, TILE: tl.constexpr,
    TALL: tl.constexpr = NO,
):  # fmt: skip
    """What a walk over keys begins with: x_i . table[d] for the left half of its first band [i, c], or for the row that
    holds for all its pairs [i, 1]. band: the offset of the last query and the first key.

    TALL: computed as [c, i], together with the right half. Where there are two products in one place, the compiler lays
    all warps along the rows. A square one has too few rows, and warps would compute the same part of it.
    """
    if is_constant(table, REGION):
        half = tl.expand_dims(edge_product(rows, table, head, REGION == AFTER, WIDTH), -1)
    elif TALL and groups_of(rows.shape) == 1:
        both = dot(load_band(table, head, band, WIDTH, 2 * TILE), tl.trans(rows))
        half, _ = tl.split(tl.permute(tl.reshape(both, (2, TILE, TILE)), (2, 1, 0)))
    else:
        half = band_product(rows, table, head, band, WIDTH, TILE)
    return half


@triton.jit
def with_band(
    pairs, half, rows, table, head, band, REGION: tl.constexpr, WIDTH: tl.constexpr, TILE: tl.constexpr,
    IN_BACKWARD: tl.constexpr = NO,
):  # fmt: skip
    """pairs [i, j], with x_i . table[d_ij] added, and the half of the next tile of keys; half: that of this tile.

    IN_BACKWARD: where tiles of 64 leave few registers.
    """
    if is_constant(table, REGION):
        pairs += half
    else:
        right = band_product(rows, table, head, band + TILE, WIDTH, TILE)
        pairs += pairs_from_rows(half, right, TILE, IN_BACKWARD and TILE >= 64)
        half = right
    return pairs, half


@triton.jit
def by_keys(rows, table, head, band, REGION: tl.constexpr, WIDTH: tl.constexpr, TILE: tl.constexpr):
    """table[d_ij] . y_j for rows y_j, as pairs [i, j], or [1, j] where it is constant."""
    if is_constant(table, REGION):
        pairs = edge_product(rows, table, head, REGION == AFTER, WIDTH)[None, :]
    else:
        left = band_product(rows, table, head, band, WIDTH, TILE)
        right = band_product(rows, table, head, band + TILE, WIDTH, TILE)
        pairs = pairs_from_columns(tl.trans(left), tl.trans(right), TILE)
    return pairs


@triton.jit
def tanh(x):
    """tanh(x) to a few units in the last place: its series where 1 - 2 / (e^2x + 1) would cancel."""
    square = x * x
    series = x + x * square * (-1 / 3 + square * (2 / 15 + square * (-17 / 315 + square * (62 / 2835))))
    far = 1.0 - 2.0 / (tl.exp2(tl.minimum(tl.abs(x), 44.0) * (2.0 * LOG2_E)) + 1.0)  # beyond 44 it is 1
    return tl.where(square < 0.0625, series, tl.where(x < 0.0, -far, far))


@triton.jit
def finish_scores(x, batch, head, i, j, scores, every):
    """S * log2(e), -inf where a pair does not attend; and the slope of the cap. scores: the sum of the products by the
    scale, and of b, times log2(e).

    every: whether all of these pairs are visible by their offsets. If so, and without masks, there is nothing to look
        up.
    """
    slope = 1.0
    scores = with_biases(x, batch, head, i, j, scores, LOG2_E)
    if x.softcap is not None:
        of_cap = tanh(scores * (1.0 / (x.softcap * LOG2_E)))
        scores, slope = of_cap * (x.softcap * LOG2_E), 1.0 - of_cap * of_cap
    if x.key_bias is not None:
        a_at = x.key_bias.at + batch.to(tl.int64) * x.key_bias.batch + head.to(tl.int64) * x.key_bias.head
        c_at = x.key_shift.at + batch.to(tl.int64) * x.key_shift.batch + head.to(tl.int64) * x.key_shift.head
        a = tl.load(a_at + j.to(tl.int64) * x.key_bias.row, mask=(j >= 0) & (j < x.keys), other=0.0)
        c = tl.load(c_at + i.to(tl.int64) * x.key_shift.row, mask=(i >= 0) & (i < x.queries), other=0.0)
        scores += LOG2_E * (a - c)
    if x.added is not None:
        there = (i >= 0) & (i < x.queries) & (j >= 0) & (j < x.keys)
        added = tl.load(pairs_at(x.added, batch, head, i, j), mask=there, other=0.0).to(tl.float32)
        # In base 2 the lowest number of float32 would become -inf, which hides.
        in_base_two = tl.minimum(tl.maximum(added * LOG2_E, -LARGEST), LARGEST)
        scores = tl.where(added == float("-inf"), added, scores + in_base_two)
    if x.mask.keep is not None or x.mask.query_ids is not None or x.mask.pairs is not None:
        scores = tl.where(visible(x, batch, head, i, j), scores, float("-inf"))
    else:
        shown = scores
        if not every:
            shown = tl.where(visible(x, batch, head, i, j), scores, float("-inf"))
        # Without this line the compiler does not see that products before and after belong together: it lays them over
        # the warps in two ways, and moves the weights from one to the other.
        scores = tl.where(every, scores, shown)
    return scores, slope


@triton.jit
def finish_tile_scores(x, batch, head, first_query, first_key, products, REGION: tl.constexpr, TILE: tl.constexpr):
    """`finish_scores`, for a tile of keys and one of queries, or several."""
    GROUPS: tl.constexpr = groups_of(products.shape)
    i = tl.expand_dims(first_query + each_query(TILE, GROUPS), -1)
    j = first_key + tl.arange(0, TILE)[None, :]
    last_query, last_key = first_query + GROUPS * TILE - 1, first_key + TILE - 1
    lowest, highest = x.offset + first_key - last_query, x.offset + last_key - first_query
    every = in_reach(x, last_query, first_key, last_key, lowest, highest)
    scores = products * (x.scale * LOG2_E)
    if is_constant(x.bias, REGION):
        scores += LOG2_E * load_edge_bias(x.bias, head, REGION == AFTER)
    elif x.bias is not None:
        scores = with_bias(scores, x.bias, head, lowest, LOG2_E, TILE)
    return finish_scores(x, batch, head, i, j, scores, every)
