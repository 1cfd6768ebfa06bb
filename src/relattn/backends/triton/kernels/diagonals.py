"""The sums of the tables' gradients over the pairs at each offset, along the diagonals. A program owns a block of T
neighbouring offsets, or two, and walks over the queries that may see a key there: the sums are deterministic.

    dRK[d] = scale * sum_i dS_i,i+d r_i      dRQ[d] = scale * sum_i dS_i,i+d k_i+d
    dRV[d] = sum_i P_i,i+d dO_i              db[d]  = sum_i dS_i,i+d

The keys of a tile of queries at T neighbouring offsets lie in two neighbouring tiles of keys. S of both is computed
again as everywhere, and moved to diagonals [i, c]. Two blocks share a tile of keys: with relative keys they take 10
products where each takes 6.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import triton
import triton.language as tl
from torch import Tensor

from relattn.backends.triton.device.backward_inputs import score_gradients, weights_of
from relattn.backends.triton.device.bands import dot, load_band, load_rows, padded, place, store_rows
from relattn.backends.triton.device.biases import load_bias
from relattn.backends.triton.device.blocks import with_products, with_values
from relattn.backends.triton.device.device_starts import load_starts
from relattn.backends.triton.device.dropout import dropout_keeps
from relattn.backends.triton.device.masks import in_reach, may_meet
from relattn.backends.triton.device.recompute import load_queries
from relattn.backends.triton.device.scores import LOG2_E, finish_scores
from relattn.backends.triton.device.skew import diagonals_from_tiles, tiles_from_diagonals


class SumsMemory(NamedTuple):
    """Memory for a table's sums, [parts, Hq, rows, width], or [parts, Hq, rows] for a bias, from offset `first`."""

    at: Tensor
    part: int
    head: int
    row: int
    first: int
    rows: int


class Sums(NamedTuple):
    """The sums of each table; None where its gradient is not computed."""

    relative_keys: SumsMemory | None
    relative_queries: SumsMemory | None
    relative_values: SumsMemory | None
    bias: SumsMemory | None


class Diagonals(NamedTuple):
    """The offsets first .. end - 1 of tables, and memory for their sums; parts: of the queries, each summed apart.

    Where an origin is a tensor, `first` is a pointer to the first offset of the one table, and `end` the number of its
    rows.
    """

    into: Sums
    first: int | Tensor
    end: int
    parts: int


@triton.jit
def tables_kernel(
    x, inputs, diagonals, batches,
    D: tl.constexpr, DV: tl.constexpr, DR: tl.constexpr, TILES: tl.constexpr, TILE: tl.constexpr,
):  # fmt: skip
    """`sum_diagonals` of one program; diagonals: `Diagonals`."""
    sum_diagonals(load_starts(x), inputs, diagonals, batches, tl.program_id(0), D, DV, DR, TILES, TILE)


@triton.jit
def programs_of(x, diagonals, TILES: tl.constexpr, TILE: tl.constexpr):
    """The number of programs that sum them."""
    count = diagonals.end
    if x.starts is None:
        count -= diagonals.first
    return tl.cdiv(count, TILES * TILE) * x.heads * diagonals.parts


@triton.jit
def sum_diagonals(
    x, inputs, diagonals, batches, program,
    D: tl.constexpr, DV: tl.constexpr, DR: tl.constexpr, TILES: tl.constexpr, TILE: tl.constexpr,
):  # fmt: skip
    """The sums of TILES blocks of offsets, 1 or 2, in one head over one part of the queries."""
    into, first, end, parts = diagonals
    if x.starts is not None:
        first = tl.load(first)
        end = first + end
        into = Sums(
            _from(into.relative_keys, first), _from(into.relative_queries, first),
            _from(into.relative_values, first), _from(into.bias, first),
        )  # fmt: skip
    owners = tl.cdiv(end - first, TILES * TILE)
    owner, head, part = owners - 1 - program % owners, program // owners % x.heads, program // owners // x.heads
    offset = first + owner * (TILES * TILE)  # with causality the longest diagonals first
    low = _empty(x, head, offset, D, DV, DR, TILE)
    if TILES == 2:
        high = _empty(x, head, offset + TILE, D, DV, DR, TILE)

    # The queries that have a key at any of the offsets, in every batch element.
    first_query = tl.maximum(x.offset - offset - (TILES * TILE - 1), 0) // TILE * TILE
    end_query = tl.minimum(x.keys + x.offset - offset, x.queries)
    tiles = tl.maximum(tl.cdiv(end_query - first_query, TILE), 0)
    steps = tl.cdiv(tiles * batches, parts)
    of_a_batch = tiles
    if x.starts is not None:  # no query may have a key here, and the compiler divides before it asks whether to walk
        of_a_batch = tl.maximum(tiles, 1)
    for step in range(part * steps, tl.minimum((part + 1) * steps, tiles * batches)):
        start = first_query + step % of_a_batch * TILE
        batch = step // of_a_batch
        if may_meet(x, batch, head, start, offset, TILE, TILES * TILE):
            queries = load_queries(x, inputs, batch, head, start, D, DV, DR, TILE)
            key = start + offset - x.offset
            near = _tile_of_keys(x, queries, key, D, DV, TILE)
            far = _tile_of_keys(x, queries, key + TILE, D, DV, TILE)
            low = _with_diagonals(x, into, low, queries, near, far, TILE)
            if TILES == 2:
                near, far = far, _tile_of_keys(x, queries, key + 2 * TILE, D, DV, TILE)
                high = _with_diagonals(x, into, high, queries, near, far, TILE)
    _store(into, part, head, low, D, DV, DR, TILE)
    if TILES == 2:
        _store(into, part, head, high, D, DV, DR, TILE)


class _Block(NamedTuple):
    """T neighbouring offsets: the first, their rows of the tables, and the sums at them."""

    first: Any
    keys_band: Any
    queries_band: Any
    values_band: Any
    by_keys: Any
    by_queries: Any
    by_values: Any
    by_bias: Any


class _Tile(NamedTuple):
    """A tile of keys: the first, its rows, and q . k and dO . v with a tile of queries [i, n], by all axes."""

    first: Any
    k: Any
    products: Any
    by_weight: Any


@triton.jit
def _empty(x, head, first, D: tl.constexpr, DV: tl.constexpr, DR: tl.constexpr, TILE: tl.constexpr):
    """The block of the offsets from `first`, its sums zero."""
    keys_band, queries_band, values_band = None, None, None
    if x.relative_keys is not None:
        keys_band = load_band(x.relative_keys, head, first, DR, TILE)
    if x.relative_queries is not None:
        queries_band = load_band(x.relative_queries, head, first, D, TILE)
    if x.relative_values is not None:
        values_band = load_band(x.relative_values, head, first, DV, TILE)
    by_keys = tl.zeros((TILE, padded(DR)), tl.float32)
    by_queries = tl.zeros((TILE, padded(D)), tl.float32)
    by_values = tl.zeros((TILE, padded(DV)), tl.float32)
    by_bias = tl.zeros((TILE,), tl.float32)
    return _Block(first, keys_band, queries_band, values_band, by_keys, by_queries, by_values, by_bias)


@triton.jit
def _tile_of_keys(x, queries, first, D: tl.constexpr, DV: tl.constexpr, TILE: tl.constexpr):
    key_head = queries.head // x.group
    k = load_rows(place(x.k, queries.batch, key_head), x.k.row, first, x.keys, D, TILE)
    v = load_rows(place(x.v, queries.batch, key_head), x.v.row, first, x.keys, DV, TILE)
    products, by_weight = dot(queries.q, tl.trans(k)), dot(queries.grad_output, tl.trans(v))
    products = with_products(x, queries.batch, queries.head, queries.first, first, queries.q, k, products, D, TILE)
    by_weight = with_values(
        x, queries.batch, queries.head, queries.first, first, queries.grad_output, by_weight, DV, TILE
    )
    return _Tile(first, k, products, by_weight)


@triton.jit
def _with_diagonals(x, into, block, queries, near, far, TILE: tl.constexpr):
    """The block with the sums over a tile of queries, whose keys at these offsets lie in two tiles."""
    offset, keys_band, queries_band, values_band, by_keys, by_queries, by_values, by_bias = block
    batch, head, start, q, r, grad_output, delta, maximum, share = queries
    # S = scale * (q k^T + r RK^T + k RQ^T) + b along the diagonals, then P
    products = diagonals_from_tiles(near.products, far.products, TILE)
    if x.relative_keys is not None:
        products += dot(r, tl.trans(keys_band))
    if x.relative_queries is not None:
        of_near, of_far = dot(queries_band, tl.trans(near.k)), dot(queries_band, tl.trans(far.k))
        products += tl.trans(diagonals_from_tiles(of_near, of_far, TILE))
    i, key = start + tl.arange(0, TILE)[:, None], near.first
    j = i + offset + tl.arange(0, TILE)[None, :] - x.offset
    every = in_reach(x, start + TILE - 1, key, key + 2 * TILE - 2, offset, offset + TILE - 1)
    scores = products * (x.scale * LOG2_E)
    if x.bias is not None:
        scores += LOG2_E * load_bias(x.bias, head, offset + tl.arange(0, TILE)[None, :])
    scores, slope = finish_scores(x, batch, head, i, j, scores, every)
    weights = weights_of(scores, maximum, share)

    # dP = dO v^T + dO RV^T, then dS = P * (dP - delta) * (1 - tanh^2)
    by_weight = diagonals_from_tiles(near.by_weight, far.by_weight, TILE)
    if x.relative_values is not None:
        by_weight += dot(grad_output, tl.trans(values_band))
    weights, scores = score_gradients(x, dropout_keeps(x, batch, head, i, j), weights, by_weight, delta)
    if x.softcap is not None:
        scores *= slope

    # db += 1^T dS, dRV += P^T dO
    if into.bias is not None:
        by_bias += tl.sum(scores, axis=0)
    if into.relative_values is not None:
        by_values += dot(tl.trans(weights.to(grad_output.dtype)), grad_output)
    # dRK += dS^T r, dRQ += dS k
    scores = tl.trans(scores.to(q.dtype))
    if into.relative_keys is not None:
        by_keys += dot(scores, r)
    if into.relative_queries is not None:
        to_near, to_far = tiles_from_diagonals(scores, TILE)
        by_queries += dot(to_near, near.k) + dot(to_far, far.k)
    return _Block(offset, keys_band, queries_band, values_band, by_keys, by_queries, by_values, by_bias)


@triton.jit
def _from(into, first):
    """Sums from this offset on."""
    if into is not None:
        into = SumsMemory(into.at, into.part, into.head, into.row, first, into.rows)
    return into


@triton.jit
def _store(
    into, part, head, block, D: tl.constexpr, DV: tl.constexpr, DR: tl.constexpr, TILE: tl.constexpr
):  # fmt: skip
    """The sums at those of the block's offsets that each table has as rows."""
    if into.relative_keys is not None:
        _store_rows(into.relative_keys, part, head, block.first, block.by_keys, DR, TILE)
    if into.relative_queries is not None:
        _store_rows(into.relative_queries, part, head, block.first, block.by_queries, D, TILE)
    if into.relative_values is not None:
        _store_rows(into.relative_values, part, head, block.first, block.by_values, DV, TILE)
    if into.bias is not None:
        row = block.first + tl.arange(0, TILE) - into.bias.first
        at = into.bias.at + part.to(tl.int64) * into.bias.part + head.to(tl.int64) * into.bias.head
        tl.store(at + row, block.by_bias, mask=(row >= 0) & (row < into.bias.rows))


@triton.jit
def _store_rows(into, part, head, offset, sums, WIDTH: tl.constexpr, TILE: tl.constexpr):
    at = into.at + part.to(tl.int64) * into.part + head.to(tl.int64) * into.head
    store_rows(at, into.row, offset - into.first, into.rows, sums, WIDTH, TILE)
