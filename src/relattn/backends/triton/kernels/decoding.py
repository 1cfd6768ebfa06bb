"""The forward pass of a few queries over many keys. The keys are divided among programs, and their splits are merged.

One query does not fill a tile for the tensor cores. It needs no rotation: the keys of its row need neighbouring rows of
a table. A program sums one row over one split of the keys in float32. Beside O_p it finds the split's largest score
m_p, and t_p, the sum of 2^(S - m_p). A second kernel merges the splits,

    m = max_p m_p        t = sum_p 2^(m_p - m) t_p        O = sum_p 2^(m_p - m) t_p O_p / t

in their order. Tiles and splits follow from the call's shapes, limits and masks. So a call has the same bits on every
GPU.
"""

# pyright: reportArgumentType=false

from __future__ import annotations

import math
from typing import Any

import triton
import triton.language as tl

from relattn.backends.problem_operator import Forward
from relattn.backends.triton.device.bands import load_band, load_rows, padded, place
from relattn.backends.triton.device.biases import load_bias
from relattn.backends.triton.device.device_starts import load_starts
from relattn.backends.triton.device.dropout import dropout_keeps
from relattn.backends.triton.device.explicit import with_products_of_query, with_value_rows
from relattn.backends.triton.device.masks import in_reach, key_tiles
from relattn.backends.triton.device.scores import LOG2_E, finish_scores
from relattn.backends.triton.host.call import Call, answers_of
from relattn.backends.triton.host.pack import every_width_of, pack, widths_of
from relattn.backends.triton.host.ready import keep, recall
from relattn.backends.triton.host.replay import new_memory, note

MAX_QUERIES = 8
"""The most queries for this kernel. Each reads the keys again; a tile of 64 rows would compute eight times as many
rows.
"""
NUMBERS = 4096  # of a tile of keys: 32 a thread, so that a few such tiles stay in registers
PROGRAMS, MAX_SPLITS, KEYS_PER_SPLIT = 1024, 64, 128  # keep a large GPU busy; what one program merges; worth a program


def few_queries(call: Call) -> Forward:
    """The kernels' answers, each query on its own."""
    widths = widths_of(call)
    width, rows, splits = widths["DV"], call.query.shape[:3].numel(), _num_splits(call)
    tile = NUMBERS // triton.next_power_of_2(max(*every_width_of(call), 16))
    outputs = new_memory(call.query, (splits, rows, width))
    maxima, totals = (new_memory(call.query, (splits, rows)) for _ in range(2))
    _launch(split_keys_kernel, splits * rows, (pack(call), outputs, maxima, totals, splits), {**widths, "TILE": tile})
    answers = answers_of(call)
    arguments = outputs, maxima, totals, *answers, splits
    _launch(merge_kernel, rows, arguments, {"DV": width, "SPLITS": MAX_SPLITS})
    return answers


def _launch(kernel: Any, programs: int, arguments: tuple, constants: dict[str, int]) -> None:
    """With as many warps and stages as Triton takes by itself."""
    known_by = kernel.__name__, arguments[1].get_device(), *constants.values()
    if (again := recall(known_by, arguments)) is not None:
        again.launch(programs, arguments)
    else:
        launched = kernel[(programs,)](*arguments, **constants)
        again = keep(known_by, arguments, launched, tuple(constants.values()))
    note(again, programs, arguments)


def _num_splits(call: Call) -> int:
    """The number of splits: enough to keep a large GPU busy, each with enough keys for a program."""
    rows = call.query.shape[:3].numel()
    lowest, highest = call.visible_offsets
    keys = min(call.key.shape[2], max(highest - lowest + 1, 0))
    return max(min(PROGRAMS // rows, math.ceil(keys / KEYS_PER_SPLIT), MAX_SPLITS), 1)


@triton.jit
def split_keys_kernel(
    x, outputs, maxima, totals, splits, D: tl.constexpr, DV: tl.constexpr, DR: tl.constexpr, TILE: tl.constexpr
):  # fmt: skip
    """O, m and t of one query in one head over one split of its keys; x: `KernelArgs`."""
    x = load_starts(x)
    rows = tl.num_programs(0) // splits
    split, row = tl.program_id(0) // rows, tl.program_id(0) % rows
    query, head, batch = row % x.queries, row // x.queries % x.heads, row // x.queries // x.heads

    k_at, v_at = place(x.k, batch, head // x.group), place(x.v, batch, head // x.group)
    q = load_rows(place(x.q, batch, head), x.q.row, query, x.queries, D, 1).to(tl.float32)
    r = q
    if x.r is not None:
        r = load_rows(place(x.r, batch, head), x.r.row, query, x.queries, DR, 1).to(tl.float32)
    maximum, total = tl.full((1,), float("-inf"), tl.float32), tl.zeros((1,), tl.float32)
    weighted = tl.zeros((padded(DV),), tl.float32)

    first_key, end_key = key_tiles(x, batch, head, query, 1, 1)
    length = tl.cdiv(tl.cdiv(end_key - first_key, TILE), splits) * TILE
    start = first_key + split * length
    for key in range(start, tl.minimum(start + length, end_key), TILE):
        j = key + tl.arange(0, TILE)
        offset = x.offset + key - query
        k = load_rows(k_at, x.k.row, key, x.keys, D, TILE).to(tl.float32)
        products = tl.sum(q * k, axis=1)
        if x.relative_keys is not None:
            products += tl.sum(r * load_band(x.relative_keys, head, offset, DR, TILE).to(tl.float32), axis=1)
        if x.relative_queries is not None:
            products += tl.sum(k * load_band(x.relative_queries, head, offset, D, TILE).to(tl.float32), axis=1)
        products = with_products_of_query(x, batch, head, query, j, q, k, products, D)
        every = in_reach(x, query, key, key + TILE - 1, offset, offset + TILE - 1)
        scores = products * (x.scale * LOG2_E)
        if x.bias is not None:
            scores += LOG2_E * load_bias(x.bias, head, offset + tl.arange(0, TILE))
        scores, _ = finish_scores(x, batch, head, query, j, scores, every)

        before, maximum = maximum, tl.maximum(maximum, tl.max(scores, axis=0))
        shift = tl.where(maximum == float("-inf"), 0.0, maximum)  # nothing visible yet: 2^(-inf - 0) = 0
        weights, older = tl.exp2(scores - shift), tl.exp2(before - shift)
        total = total * older + tl.sum(weights, axis=0)
        if x.dropout is not None:
            weights = tl.where(dropout_keeps(x, batch, head, query, j), weights, 0.0)
        v = load_rows(v_at, x.v.row, key, x.keys, DV, TILE).to(tl.float32)
        if x.relative_values is not None:
            v += load_band(x.relative_values, head, offset, DV, TILE).to(tl.float32)
        v = with_value_rows(x, batch, head, query, j, v, DV)
        weighted = weighted * older + tl.sum(weights[:, None] * v, axis=0)

    if x.dropout is not None:
        weighted *= x.dropout.factor
    here, column = tl.program_id(0).to(tl.int64), tl.arange(0, padded(DV))
    tl.store(maxima + here + tl.arange(0, 1), maximum)
    tl.store(totals + here + tl.arange(0, 1), total)
    total = tl.where(total == 0.0, 1.0, total)  # a split that saw no key
    tl.store(outputs + here * DV + column, weighted / total, mask=column < DV)


@triton.jit
def merge_kernel(
    outputs, maxima, totals, output, lse, row_maxima, row_totals, splits, DV: tl.constexpr, SPLITS: tl.constexpr
):  # fmt: skip
    """O, lse, m and t of one row from those of its splits, SPLITS at most."""
    row, rows = tl.program_id(0).to(tl.int64), tl.num_programs(0)
    split, column = tl.arange(0, SPLITS), tl.arange(0, padded(DV))
    split_maxima = tl.load(maxima + split * rows + row, mask=split < splits, other=float("-inf"))
    maximum = tl.max(split_maxima, axis=0)
    weights = tl.exp2(split_maxima - tl.where(maximum == float("-inf"), 0.0, maximum))
    weights *= tl.load(totals + split * rows + row, mask=split < splits, other=0.0)
    total = tl.sum(weights, axis=0)
    tl.store(row_maxima + row, maximum)
    tl.store(row_totals + row, total)
    total = tl.where(total == 0.0, 1.0, total)  # no split saw a key
    inside = (split[:, None] < splits) & (column[None, :] < DV)
    values = tl.load(outputs + (split[:, None] * rows + row) * DV + column[None, :], mask=inside, other=0.0)
    merged = tl.sum(weights[:, None] * values, axis=0) / total
    tl.store(output + row * DV + column, merged.to(output.dtype.element_ty), mask=column < DV)
    tl.store(lse + row, (maximum + tl.log2(total)) / LOG2_E)
