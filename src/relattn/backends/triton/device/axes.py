"""Gradients by what axes have on which every token has its own position: their r, and their tables.

    dr_i = scale * sum_j dS_ij RK[d]        dRK[d] = scale * sum dS_ij r_i        dRQ[d] = scale * sum dS_ij k_j
                                            dRV[d] = sum P_ij dO_i                db[d]  = sum dS_ij

The program of a tile of queries sums dr on chip. What a tile of pairs has for each row of a table it adds to memory, by
atomic instructions; for a bias, what each pair has. Where that must be deterministic, other programs own the rows
(ordered_axis_grads.py).
"""

# pyright: reportGeneralTypeIssues=false, reportIndexIssue=false

from __future__ import annotations

import math
from typing import Any, NamedTuple

import torch
import triton
import triton.language as tl
from jaxtyping import Float
from torch import Tensor

from relattn.backends.triton.device.bands import head_of, padded, store_rows, two_to_the
from relattn.backends.triton.device.blocks import add_numbers, add_products, rows_of_pairs, sums_of
from relattn.backends.triton.device.explicit import BIAS, KEYS, QUERIES, VALUES, vectors_of
from relattn.backends.triton.host.call import Call
from relattn.backends.triton.host.pack import wanted_tables
from relattn.backends.triton.kernels.tables import of_values
from relattn.equation.problem import Differentiable

ALIGNED = tl.constexpr(16)
"""Of how many numbers, 2^4, the memory of each table is a multiple: rows stay aligned."""


class AxisRGradient(NamedTuple):
    """dr of an axis on chip; None where r is q."""

    gradient: Any


class OfAxes(NamedTuple):
    """Memory for the sums of all wanted tables, one after the other; None without any. rows: what of it belongs to the
    rows of each table, by its axis and name: [Hq, R, padded width], or [Hq, R] of a bias.
    """

    memory: Tensor | None
    rows: dict[tuple[int, str], Tensor]


def memory_of_axes(call: Call, wanted: Differentiable[bool], *, spare: bool) -> OfAxes:
    """Memory for the wanted tables. spare: zeros to be added to, with a row before and a row after those of vectors;
    else nothing is in it yet.
    """
    shapes = {}
    for axis in call.axes:
        for name, table in wanted_tables(axis, wanted).items():
            widths = [int(padded(width)) for width in table.values.shape[2:]]
            rows = table.values.shape[1] + 2 * spare * len(widths)
            shapes[axis.number, name] = call.query.shape[1], rows, *widths
    if not shapes:
        return OfAxes(None, {})
    sizes = [math.ceil(math.prod(shape) / ALIGNED.value) * ALIGNED.value for shape in shapes.values()]
    make = call.query.new_zeros if spare else call.query.new_empty
    memory, table_rows = make(sum(sizes), dtype=torch.float32), {}
    for (name, shape), part in zip(shapes.items(), memory.split(sizes), strict=True):
        whole = part[: math.prod(shape)].view(shape)
        table_rows[name] = whole[:, 1:-1] if spare and len(shape) == 3 else whole
    return OfAxes(memory, table_rows)


def memory_of_r(call: Call) -> Tensor | None:
    """Memory for dr of all axes that have an r, one after the other; None without any."""
    sizes = [math.prod(shape) for shape, _ in _shapes_of_r(call).values()]
    return call.query.new_empty(sum(sizes)) if sizes else None


def gradients_of_r(call: Call, memory: Tensor | None) -> dict[int, Float[Tensor, "B Hq Lq Dr"]]:
    """dr of each of these axes, by its number. None shares memory with another."""
    gradients = {}
    if memory is not None:
        shapes = _shapes_of_r(call)
        parts = memory.split([math.prod(shape) for shape, _ in shapes.values()])
        for (number, (shape, width)), part in zip(shapes.items(), parts, strict=True):
            gradient = part.view(shape)[..., :width]
            is_all = gradient.numel() == memory.numel()
            gradients[number] = gradient if is_all else gradient.clone(memory_format=torch.contiguous_format)
    return gradients


def _shapes_of_r(call: Call) -> dict[int, tuple[tuple[int, ...], int]]:
    """[B, Hq, Lq, padded width], and the width, by the axes' numbers."""
    every = {axis.number: axis.relative_query for axis in call.axes if axis.relative_query is not None}
    return {number: ((*r.shape[:3], int(padded(r.shape[3]))), r.shape[3]) for number, r in every.items()}


def gradients_of_tables(
    call: Call, wanted: Differentiable[bool], sums: dict[tuple[int, str], Float[Tensor, "Hq R *W"]]
) -> dict[tuple[int, str], Float[Tensor, "H R *W"]]:
    """The gradients by the values of the wanted tables, by axis and name; sums: `OfAxes.rows`. None shares memory with
    another.
    """
    gradients = {}
    for axis in call.axes:
        for name, table in wanted_tables(axis, wanted).items():
            whole = axis.number, name
            total = sums[whole] if name == "bias" else sums[whole][..., : table.values.shape[2]]
            gradients[whole] = of_values(call, name, table, total.clone(memory_format=torch.contiguous_format))
    return gradients


@triton.constexpr_function
def is_summed(summed, number):
    """Whether the gradient of the table of this number is computed."""
    return (len(summed) >> number) % 2 == 1


@triton.jit
def memory_after(x, at, table, WIDTH: tl.constexpr, SPARE: tl.constexpr):
    """Where in the memory of all tables the next one begins. WIDTH: 1 for a bias."""
    numbers = tl.cast(table.rows, tl.int64) * x.heads
    aligned = (numbers + (ALIGNED - 1) >> 4) * ALIGNED if WIDTH == 1 else (numbers + 2 * SPARE * x.heads) * WIDTH
    return at + aligned


@triton.jit
def zeros_of_r(x, TILE: tl.constexpr):
    """dr of each axis at the start of a walk."""
    zeros = ()
    for n in tl.static_range(len(x.axes)):
        gradient = None
        if x.axes[n].r is not None:
            gradient = tl.zeros((TILE, two_to_the(x.axes[n].log_width)), tl.float32)
        zeros += (AxisRGradient(gradient),)
    return zeros


@triton.jit
def added_to_axes(
    x, into, r_gradients, queries, first_key, k, weights, scores, D: tl.constexpr, DV: tl.constexpr, TILE: tl.constexpr
):  # fmt: skip
    """dr of each axis, with the share of a tile of keys. What its pairs have for tables is added to memory; into:
    `AtomicBuffers.axes`.
    """
    sums = ()
    for n in tl.static_range(len(x.axes)):
        gradient = r_gradients[n].gradient
        if x.axes[n].r is not None:
            gradient += _step_of_r(x, x.axes[n], queries, first_key, k, scores, TILE)
        sums += (AxisRGradient(gradient),)
        if into is not None:
            into = _add_to_axis(x, x.axes[n], into, queries, first_key, k, weights, scores, D, DV, TILE)
    return sums


@triton.jit
def _step_of_r(x, axis, queries, first_key, k, scores, TILE: tl.constexpr):
    """dr of an axis, less the scale, by a tile of keys."""
    PADDED: tl.constexpr = two_to_the(axis.log_width)
    rows = rows_of_pairs(x, axis, axis.relative_keys, queries.batch, queries.first, first_key, TILE)
    return sums_of(
        scores, axis.relative_keys, queries.head, rows, k.dtype, False, axis.relative_width, PADDED, TILE
    )  # fmt: skip


@triton.jit
def _add_to_axis(
    x, axis, into, queries, first_key, k, weights, scores, D: tl.constexpr, DV: tl.constexpr, TILE: tl.constexpr
):  # fmt: skip
    """Add what the pairs of a tile have for an axis' tables; where the memory of the next axis begins."""
    batch, head, first_query, grad_output = queries.batch, queries.head, queries.first, queries.grad_output
    PADDED: tl.constexpr = two_to_the(axis.log_width)
    if is_summed(axis.summed, KEYS):
        rows = rows_of_pairs(x, axis, axis.relative_keys, batch, first_query, first_key, TILE)
        r = vectors_of(axis, batch, head, first_query, x.queries, queries.q, TILE)
        add_products(into, r, scores, axis.relative_keys, head, rows, False, PADDED, TILE)
        into = memory_after(x, into, axis.relative_keys, PADDED, True)
    if is_summed(axis.summed, QUERIES):
        rows = rows_of_pairs(x, axis, axis.relative_queries, batch, first_query, first_key, TILE)
        add_products(into, k, scores, axis.relative_queries, head, rows, True, padded(D), TILE)
        into = memory_after(x, into, axis.relative_queries, padded(D), True)
    if is_summed(axis.summed, VALUES):
        rows = rows_of_pairs(x, axis, axis.relative_values, batch, first_query, first_key, TILE)
        add_products(into, grad_output, weights, axis.relative_values, head, rows, False, padded(DV), TILE)
        into = memory_after(x, into, axis.relative_values, padded(DV), True)
    if is_summed(axis.summed, BIAS):
        rows = rows_of_pairs(x, axis, axis.bias, batch, first_query, first_key, TILE)
        add_numbers(into, scores, axis.bias, head, rows)
        into = memory_after(x, into, axis.bias, 1, True)
    return into


@triton.jit
def store_r(x, into, r_gradients, row, rows, first_query, TILE: tl.constexpr):
    """dr of each axis, one after the other; row counts the heads of all batch elements, of which there are `rows`."""
    for n in tl.static_range(len(x.axes)):
        if x.axes[n].r is not None:
            gradient = r_gradients[n].gradient * x.scale
            at = head_of(into, row, x.queries, gradient.shape[1])
            store_rows(at, gradient.shape[1], first_query, x.queries, gradient, gradient.shape[1], TILE)
            into = head_of(into, rows, x.queries, gradient.shape[1])
