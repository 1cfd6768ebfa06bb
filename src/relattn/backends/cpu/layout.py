"""A call as the kernels take it: the structs `Call` and `Axis` of kernels/call.h, field by field."""

from __future__ import annotations

import ctypes
import struct
from collections.abc import Iterable
from typing import Any, NamedTuple

import torch
from torch import Tensor

from relattn.backends.cpu.inputs import ELEMENT_TYPES, MOST_AXES, AxisInputs, Inputs
from relattn.equation.problem import Axis, Differentiable, PerAxis, PerTable, Problem
from relattn.equation.tables import OffsetTable
from relattn.equation.visible_blocks import SIZE, Blocks

FAR = 2**63 // 4
"""A number beyond every offset: for the kernels it means no limit."""

NO_LIMITS = (-FAR, FAR)
NO_ROWS = (0, 0, 0, 0)
NO_BAND = (0,) * 9
NO_MASK = (0, 0, 0, 0, 0, 0)
NO_BLOCKS = (0,) * 7
NO_POSITIONS = (0, 0, 0, 0, *NO_LIMITS)
NO_KEY_BIAS = (0,) * 7
NO_DROPOUT = (0,) * 4
FORWARD_ALONE = (0,) * 14
"""Stands in place of the gradients where none is wanted."""
CALL = struct.Struct("=95q3d29q")
AXIS = struct.Struct("=48q")
INPUTS = (0, 4, 8, 12, 16, 25, 34, 43)
"""The fields with the addresses of q, k and v, and of r, RK, RQ, RV and b of the sequence."""
WORKSPACE = CALL.size // 8 - 1
"""The field with the address of the workspace."""
OUTPUT = WORKSPACE - 23
OUTPUTS = range(OUTPUT, OUTPUT + 4)
"""Those of the output, lse, maximum and total."""
BY_OUTPUT, BY_LSE = range(OUTPUT + 4, OUTPUT + 8), OUTPUT + 8
"""Those of the gradient by the output, with its steps, and by lse."""
FOUND = (OUTPUT + 9, OUTPUT + 10, OUTPUT + 11, OUTPUT + 12, OUTPUT + 17, 53, 17, 26, 35, 44)
"""Those of the gradients found, in the order of a problem's leaves."""
KEYS, ORIGIN = 89, 92
"""The fields with the number of keys and the first offset."""


class Outputs(NamedTuple):
    """The outputs of the forward pass, contiguous float32; None is not written. The backward pass reads all but lse."""

    output: Tensor
    lse: Tensor | None
    maximum: Tensor | None
    total: Tensor | None


NO_AXIS_GRADIENTS = PerAxis[Tensor | None](None, PerTable(None, None, None, None))


class Gradients(NamedTuple):
    """The gradients by the output and lse, and the outputs of the backward pass, contiguous float32; None if not
    wanted.
    """

    output: Tensor
    lse: Tensor
    found: Differentiable[Tensor | None]


def packed(
    problem: Problem,
    inputs: Inputs,
    outputs: Outputs,
    gradients: Gradients | None,
    blocks: tuple[int, int],
    threads: int,
    seed: int,
) -> bytearray:
    """The bytes of the call, with 0 for the workspace's address, followed by the bytes of all axes but the first.

    blocks: the queries and keys of a block. seed: the seed of dropout; any number where there is no dropout.
    """
    assert len(problem.axes) <= MOST_AXES  # the kernels' arrays have room for no more
    first, *others = problem.axes
    lowest, highest = first.positions.lowest, first.positions.highest
    limits = -FAR if lowest is None else lowest, FAR if highest is None else highest
    is_explicit = inputs.axes[0].query_positions is not None
    query, key, value = inputs[:3]
    batch, heads, queries, width = query.shape
    _, key_heads, keys, value_width = value.shape
    pairs = batch, heads, queries, keys
    # Then the kernels may multiply them as bfloat16, although they are given as floats.
    in_bfloat16 = problem.query.dtype == problem.key.dtype == problem.value.dtype == torch.bfloat16
    by_axis = [NO_AXIS_GRADIENTS] * len(problem.axes) if gradients is None else gradients.found.axes
    call = bytearray(CALL.size + AXIS.size * len(others))
    for n, axis in enumerate(others):
        AXIS.pack_into(call, CALL.size + AXIS.size * n, *_axis(axis, inputs.axes[n + 1], by_axis[n + 1], NO_LIMITS))
    CALL.pack_into(
        call, 0,
        query.data_ptr(), *query.stride()[:3], key.data_ptr(), *key.stride()[:3], value.data_ptr(), *value.stride()[:3],
        *_axis(first, inputs.axes[0], by_axis[0], limits),
        ctypes.addressof(ctypes.c_char.from_buffer(call)) + CALL.size if others else 0, len(others),
        *addresses((inputs.key_mask, inputs.query_segments, inputs.key_segments)),
        *(NO_MASK if inputs.explicit is None else _mask(inputs.explicit, pairs)),
        *(NO_BLOCKS if inputs.blocks is None else _blocks(inputs.blocks, pairs)),
        *(NO_KEY_BIAS if inputs.key_bias is None else _key_bias(inputs.key_bias, inputs.key_shift)),
        batch, heads, key_heads, queries, keys, width, value_width,
        first.positions.known_origin or 0, *(NO_LIMITS if is_explicit else limits),
        problem.scale, problem.softcap or 0.0, 1.0 - problem.dropout_p, seed,
        *(problem.dropout_origin() if problem.dropout_p > 0.0 else NO_DROPOUT),
        *addresses(outputs), *(FORWARD_ALONE if gradients is None else _gradients(gradients, pairs)), *blocks, threads,
        ELEMENT_TYPES[key.dtype], int(in_bfloat16), 0,
    )  # fmt: skip
    return call


def _axis(axis: Axis, inputs: AxisInputs, gradients: PerAxis[Tensor | None], limits: tuple[int, int]) -> list[int]:
    """limits: the limits of explicit positions."""
    r, by_r = inputs.relative_query, gradients.relative_query
    asks = axis.relative_query is None or axis.relative_query.dtype == torch.bfloat16
    fields = list(NO_ROWS if r is None else (r.data_ptr(), *r.stride()[:3]))
    for values, table, gradient in zip(inputs[1:5], axis[2:], gradients.tables, strict=True):
        fields += NO_BAND if values is None or table is None else _band(values, table, gradient, of_pairs=asks)
    fields += [0 if r is None else r.shape[3], 0 if by_r is None else by_r.data_ptr()]
    fields += NO_POSITIONS if inputs.query_positions is None else (*_positions(inputs), *limits)
    return fields


def addresses(tensors: Iterable[Tensor | None]) -> list[int]:
    """Their addresses, 0 for None."""
    found = []
    for tensor in tensors:
        found.append(0 if tensor is None else tensor.data_ptr())
    return found


def _mask(explicit: Tensor, pairs: tuple[int, ...]) -> tuple[int, ...]:
    at = explicit.data_ptr()
    return *((at, 0) if explicit.dtype == torch.bool else (0, at)), *explicit.expand(pairs).stride()


def _blocks(blocks: Blocks, pairs: tuple[int, ...]) -> tuple[int, ...]:
    batch, heads, queries, keys = pairs
    of_pairs = blocks.pairs
    steps = () if of_pairs is None else of_pairs.expand(batch, heads, -(-queries // SIZE), -(-keys // SIZE)).stride()
    return *addresses((blocks.key_ids, blocks.keys, of_pairs)), *(steps or NO_ROWS)


def _positions(inputs: AxisInputs) -> tuple[int, ...]:
    query, key = inputs.query_positions, inputs.key_positions
    return *addresses((query, key)), _batch_step(query), _batch_step(key)


def _gradients(gradients: Gradients, pairs: tuple[int, ...]) -> tuple[Any, ...]:
    output, (query, key, value, by_mask, key_bias, _) = gradients.output, gradients.found
    return (
        output.data_ptr(), *output.stride()[:3], *addresses((gradients.lse, query, key, value, by_mask)),
        *(NO_ROWS if by_mask is None else by_mask.expand(pairs).stride()), *addresses((key_bias,)),
    )  # fmt: skip


def _batch_step(positions: Tensor | None) -> int:
    """The step from a batch element's positions to the next one's; 0 where all share them."""
    return 0 if positions is None or positions.dim() == 1 or positions.shape[0] == 1 else positions.stride(0)


def _key_bias(key_bias: Tensor, key_shift: Tensor | None) -> tuple[int, ...]:
    assert key_shift is not None
    return key_bias.data_ptr(), key_shift.data_ptr(), *key_bias.stride()[:2], *key_shift.stride()


def _band(values: Tensor, table: OffsetTable, gradient: Tensor | None, *, of_pairs: bool) -> tuple[Any, ...]:
    heads, count = values.shape[:2]
    width = values.shape[2] if values.dim() == 3 else 1
    return (
        values.data_ptr(), 0 if gradient is None else gradient.data_ptr(), heads,
        0 if heads == 1 else values.stride(0), count, table.first, width,
        int(table.beyond != "zero"), int(of_pairs and table.values.dtype == torch.bfloat16),
    )  # fmt: skip
