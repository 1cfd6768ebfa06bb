"""dk, dv and da without an addition across programs: one program owns a tile of keys, or two, and walks over the
queries.

    dv_j = sum_i P_ij dO_i               dk_j = scale * sum_i dS_ij (q_i + RQ[d])       da_j = sum_i dS_ij

S and dP of every tile are computed again. The right half of a tile's band is the left half of that of the next tile of
keys. So with relative keys two tiles take 11 products where each takes 6. The query heads that share the keys come one
after the other.
"""

# pyright: reportGeneralTypeIssues=false

from __future__ import annotations

import math
from typing import Any, NamedTuple

import triton
import triton.language as tl
from torch import Tensor

from relattn.backends.triton.device.backward_inputs import BackwardInputs, Sides, side_sums, store_sides
from relattn.backends.triton.device.bands import band_sum, dot, edge_sum, head_of, load_rows, padded, place, store_rows
from relattn.backends.triton.device.blocks import with_sums
from relattn.backends.triton.device.clip_regions import AFTER, first_region, holds_too_much, is_constant, queries_of
from relattn.backends.triton.device.device_starts import load_starts
from relattn.backends.triton.device.explicit import QUERIES
from relattn.backends.triton.device.recompute import first_halves, load_queries, recompute_pairs
from relattn.backends.triton.device.skew import columns_from_pairs
from relattn.backends.triton.host.autotune import architecture_of, launch
from relattn.backends.triton.host.call import Call
from relattn.backends.triton.host.kernel_args import KernelArgs
from relattn.backends.triton.host.replay import new_memory
from relattn.backends.triton.host.tile_configs import tiles_of_a_program
from relattn.equation.problem import Differentiable


class KeyTile(NamedTuple):
    """A tile of keys: the first, its rows of k and v, and its sums over the queries, those of a query head last."""

    first: Any
    k: Any
    v: Any
    by_key: Any
    by_value: Any
    by_key_bias: Any
    beyond: Any


def gradients_of_keys(
    call: Call, x: KernelArgs, inputs: BackwardInputs, sides: Sides, wanted: Differentiable[bool]
) -> dict[str, Tensor]:
    """dk, dv and a wanted da, each in its dtype."""
    named = {"key": call.key, "value": call.value}
    if wanted.key_bias and call.key_bias is not None:
        named["key_bias"] = call.key_bias
    gradients = {name: new_memory(each, each.shape, None) for name, each in named.items()}
    batch, heads, keys = call.key.shape[:3]
    has_bands = call.relative_keys is not None or call.relative_values is not None  # which two tiles share
    tiles = tiles_of_a_program(keys_kernel, call, keys, architecture_of(call)) if has_bands else 1

    def programs(tile: int) -> int:
        return math.ceil(keys / (tiles * tile)) * batch * heads

    arguments = x, inputs, sides, gradients["key"], gradients["value"], gradients.get("key_bias")
    launch(keys_kernel, call, programs, arguments, more={"TILES": tiles})
    return gradients


@triton.jit
def keys_kernel(
    x, inputs, sides, grad_key, grad_value, grad_key_bias,
    D: tl.constexpr, DV: tl.constexpr, DR: tl.constexpr, TILES: tl.constexpr, TILE: tl.constexpr,
):  # fmt: skip
    """dk, dv and da of TILES tiles of keys, 1 or 2, under one key head: all of its query heads, one after the other."""
    x = load_starts(x)
    IN_EACH: tl.constexpr = holds_too_much(x, D, DV)
    blocks = tl.cdiv(x.keys, TILES * TILE)
    program = tl.program_id(0)
    key_heads = x.heads // x.group
    key_row = program // blocks
    batch, key_head = key_row // key_heads, key_row % key_heads
    first_key = program % blocks * (TILES * TILE)

    near = _load_keys(x, batch, key_head, first_key, D, DV, TILE)
    if TILES == 2:
        far = _load_keys(x, batch, key_head, first_key + TILE, D, DV, TILE)
    for member in range(0, x.group):
        head = key_head * x.group + member
        for REGION in tl.static_range(first_region(x), 3):
            first_query, end_query = queries_of(x, batch, head, first_key, REGION, TILES * TILE, TILE)
            for start in tl.range(first_query, end_query, TILE, disable_licm=IN_EACH):
                queries = load_queries(x, inputs, batch, head, start, D, DV, DR, TILE)
                halves = first_halves(x, queries, first_key, REGION, DV, DR, TILE)
                near, halves = _add_queries(
                    x, sides, grad_key_bias, near, queries, halves, REGION, D, DV, DR, TILE
                )  # fmt: skip
                if TILES == 2:
                    far, _ = _add_queries(
                        x, sides, grad_key_bias, far, queries, halves, REGION, D, DV, DR, TILE
                    )  # fmt: skip
        row, rows = batch * x.heads + head, tl.num_programs(0) // blocks * x.group
        near = _store_for_head(x, sides, grad_key_bias, near, row, rows, TILE)
        if TILES == 2:
            far = _store_for_head(x, sides, grad_key_bias, far, row, rows, TILE)
    _store_gradients(x, grad_key, grad_value, near, key_row, D, DV, TILE)
    if TILES == 2:
        _store_gradients(x, grad_key, grad_value, far, key_row, D, DV, TILE)


@triton.jit
def _load_keys(x, batch, key_head, first, D: tl.constexpr, DV: tl.constexpr, TILE: tl.constexpr):
    """The tile of keys from `first`, its sums zero."""
    k = load_rows(place(x.k, batch, key_head), x.k.row, first, x.keys, D, TILE)
    v = load_rows(place(x.v, batch, key_head), x.v.row, first, x.keys, DV, TILE)
    by_key, by_value = tl.zeros((TILE, padded(D)), tl.float32), tl.zeros((TILE, padded(DV)), tl.float32)
    nothing = tl.zeros((TILE,), tl.float32)
    return KeyTile(first, k, v, by_key, by_value, nothing, (nothing, nothing))


@triton.jit
def _add_queries(
    x, sides, grad_key_bias, keys, queries, halves,
    REGION: tl.constexpr, D: tl.constexpr, DV: tl.constexpr, DR: tl.constexpr, TILE: tl.constexpr,
):  # fmt: skip
    """The tile of keys with the sums over a tile of queries, and the halves for the next tile of keys."""
    first, k, v, by_key, by_value, by_key_bias, beyond = keys
    batch, head, q, grad_output = queries.batch, queries.head, queries.q, queries.grad_output
    weights, scores, slope, halves = recompute_pairs(x, queries, halves, first, k, v, REGION, D, DV, DR, TILE)
    if grad_key_bias is not None:
        by_key_bias += tl.sum(scores, axis=0)
    if x.softcap is not None:
        scores *= slope

    offset = x.offset + first - queries.first
    if sides.relative_queries is not None:
        beyond = side_sums(beyond, scores, x.relative_queries, offset, REGION, 0, TILE)
    by_value += dot(tl.trans(weights.to(v.dtype)), grad_output)
    by_key = with_sums(x, batch, head, queries.first, first, scores, by_key, QUERIES, D, TILE)
    if is_constant(x.relative_queries, REGION):
        by_key += edge_sum(tl.trans(scores), x.relative_queries, head, REGION == AFTER, D)
    scores = scores.to(k.dtype)
    by_key += dot(tl.trans(scores), q)
    if x.relative_queries is not None and not is_constant(x.relative_queries, REGION):
        to_left, to_right = columns_from_pairs(scores, TILE)
        band = offset - (TILE - 1)
        by_key += band_sum(tl.trans(to_left), x.relative_queries, head, band, D, TILE)
        by_key += band_sum(tl.trans(to_right), x.relative_queries, head, band + TILE, D, TILE)
    return KeyTile(first, k, v, by_key, by_value, by_key_bias, beyond), halves


@triton.jit
def _store_for_head(x, sides, grad_key_bias, keys, row, rows, TILE: tl.constexpr):
    """The tile of keys, its sums for one query head stored and zero again. rows: the heads of all batch elements."""
    first, k, v, by_key, by_value, by_key_bias, beyond = keys
    if grad_key_bias is not None:
        key = first + tl.arange(0, TILE)
        tl.store(grad_key_bias + row.to(tl.int64) * x.keys + key, by_key_bias, mask=key < x.keys)
    if sides.relative_queries is not None:
        store_sides(sides.relative_queries, beyond, row, rows, first, x.keys, TILE)
    nothing = tl.zeros((TILE,), tl.float32)
    return KeyTile(first, k, v, by_key, by_value, nothing, (nothing, nothing))


@triton.jit
def _store_gradients(x, grad_key, grad_value, keys, key_row, D: tl.constexpr, DV: tl.constexpr, TILE: tl.constexpr):
    """dk and dv of the tile of keys."""
    at = head_of(grad_key, key_row, x.keys, D)
    store_rows(at, D, keys.first, x.keys, keys.by_key * x.scale, D, TILE)
    store_rows(head_of(grad_value, key_row, x.keys, DV), DV, keys.first, x.keys, keys.by_value, DV, TILE)
