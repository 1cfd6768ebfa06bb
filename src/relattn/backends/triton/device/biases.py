"""b of pairs, by their offsets, in float32. A head's numbers are neighbours in memory."""

# pyright: reportGeneralTypeIssues=false, reportIndexIssue=false

from __future__ import annotations

import triton
import triton.language as tl

from relattn.backends.triton.device.bands import INTERPRETED, groups_of


@triton.jit
def numbers_at(places):
    """The numbers at these addresses, in float32. The compiler takes the instruction for arithmetic.

    A load of `tl` is laid over the threads by its addresses. Here the numbers of pairs lie where the products do to
    which they are added. With a load, a softmax was computed twice on Hopper, once in each layout.
    """
    if INTERPRETED:
        numbers = tl.load(places).to(tl.float32)
    elif places.dtype.element_ty == tl.float32:
        numbers = tl.inline_asm_elementwise("ld.global.b32 $0, [$1];", "=f,l", [places], tl.float32, True, 1)
    else:
        dtype: tl.constexpr = places.dtype.element_ty
        numbers = tl.inline_asm_elementwise("ld.global.b16 $0, [$1];", "=h,l", [places], dtype.value, True, 1)
        numbers = numbers.to(tl.float32)
    return numbers


@triton.jit
def load_bias(table, head, offsets):
    """b at each of the offsets, in float32."""
    index = offsets - table.first
    row = tl.minimum(tl.maximum(index, 0), table.rows - 1)
    bias = numbers_at(table.at + head.to(tl.int64) * table.head + row)
    if table.zero is not None:
        bias = tl.where(index == row, bias, 0.0)
    return bias


@triton.jit
def with_bias(scores, table, head, lowest, factor, TILE: tl.constexpr):
    """The scores of the pairs [i, j] of a tile of keys and one of queries, or several, with `factor` times b of their
    offsets; lowest: the first of these.

    Query 16 w + 8 h + r and key 8 n + 2 t + b. For a product of tensor cores w, r and t tell the thread, so its rows of
    the table are one number and constants. Where all of them exist, none is compared, and those of equal offsets are
    loaded once.
    """
    GROUPS: tl.constexpr = groups_of(scores.shape)
    w = tl.reshape(tl.arange(0, GROUPS * TILE // 16), (GROUPS * TILE // 16, 1, 1, 1, 1, 1))
    h = tl.reshape(tl.arange(0, 2), (1, 2, 1, 1, 1, 1))
    r = tl.reshape(tl.arange(0, 8), (1, 1, 8, 1, 1, 1))
    n = tl.reshape(tl.arange(0, TILE // 8), (1, 1, 1, TILE // 8, 1, 1))
    t = tl.reshape(tl.arange(0, 4), (1, 1, 1, 1, 4, 1))
    b = tl.reshape(tl.arange(0, 2), (1, 1, 1, 1, 1, 2))
    first = _changing(lowest + (GROUPS * TILE - 1) - table.first - 16 * w - r + 2 * t)
    at = table.at + head.to(tl.int64) * table.head
    if (lowest >= table.first) & (lowest + GROUPS * TILE + TILE - 2 < table.first + table.rows):
        numbers = numbers_at(at + first + (8 * n + b - 8 * h))
    else:
        numbers = load_bias(table, head, first + table.first + (8 * n + b - 8 * h))
    return scores + factor * tl.reshape(numbers, scores.shape)


@triton.jit
def _changing(numbers):
    """32-bit integers, by an instruction that the compiler does not look into: no part of a sum leaves a loop."""
    if not INTERPRETED:
        numbers = tl.inline_asm_elementwise("mov.b32 $0, $1;", "=r,r", [numbers], tl.int32, True, 1)
    return numbers


@triton.jit
def load_edge_bias(table, head, LAST: tl.constexpr):
    """b beyond the table, in float32."""
    start = table.at + head.to(tl.int64) * table.head
    if LAST:
        start += table.rows - 1
    return 0.0 if table.zero is not None else tl.load(start).to(tl.float32)
