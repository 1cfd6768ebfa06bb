"""A call as the kernels take it: the structs `Call` and `Axis` of kernels/call.h, field by field."""

from __future__ import annotations

import ctypes
import struct
from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any, NamedTuple

import torch
from torch import Tensor

from relattn.score.digits import Digits
from relattn.score.key_bias import lowered
from relattn.score.padding import Sight
from relattn.score.position import Position
from relattn.score.positions import Positions
from relattn.score.problem import Axis, Problem
from relattn.score.table import OffsetTable

LANES = 16
"""Floats in the widest vector: the kernels read rows of a multiple of it."""

CPU = torch.device("cpu")

FAR = 2**63 // 4
"""Beyond every offset: the kernels' sign for a limit that is none."""

NO_LIMITS = (-FAR, FAR)
NO_ROWS = (0, 0, 0, 0)
NO_BAND = (0, 0, 0, 0, 0, 0, 0, 0)
NO_MASK = (0, 0, 0, 0, 0, 0)
NO_LISTS = (0, 0, 0, 0, *NO_LIMITS)
NO_KEY_BIAS = (0,) * 7
FORWARD_ALONE = (0,) * 14
"""What stands in the place of gradients where none is asked."""
CALL = struct.Struct("=84q3d24q")
AXIS = struct.Struct("=44q")
WORKSPACE = CALL.size - 8
"""Where in the call the workspace's address stands."""


class AxisInputs(NamedTuple):
    """What stands on an axis, as the kernels read it; positions are None where both sides are runs."""

    relative_query: Tensor | None
    relative_keys: Tensor | None
    relative_queries: Tensor | None
    relative_values: Tensor | None
    bias: Tensor | None
    query_positions: Tensor | None
    key_positions: Tensor | None


class Inputs(NamedTuple):
    """A problem's tensors as the kernels read them: their last axes contiguous.

    Tables are contiguous [H, R, width]; a bias [H, R]. `of` makes all of them float32, and their widths multiples of
    LANES. `of_few` leaves widths as they are, and keys and values in bfloat16 where both are. axes: on all but the
    first positions are listed. key_bias a [B, Hq, Lk] and less c [B, Hq, Lq]: views of what `score.key_bias.lowered`
    gives.
    """

    query: Tensor
    key: Tensor
    value: Tensor
    axes: tuple[AxisInputs, ...]
    key_mask: Tensor | None
    query_segments: Tensor | None
    key_segments: Tensor | None
    explicit: Tensor | None
    key_bias: Tensor | None
    less: Tensor | None

    @classmethod
    def of(cls, problem: Problem) -> Inputs:
        """Of a problem, zeros in place of its padding."""
        sight = Sight.of(problem.mask, problem.query.shape[0], problem.key.shape[1])
        problem = Sight(*(None if seen is None or seen.all() else seen for seen in sight)).cleaned(problem)
        key, value = rows_of(problem.key), rows_of(problem.value)
        return cls._with(problem, key, value, _filled_up)

    @classmethod
    def of_few(cls, problem: Problem) -> Inputs:
        """Of a problem of few queries; its kernels skip what no query sees."""
        key, value = problem.key, problem.value
        if key.dtype != torch.bfloat16 or value.dtype != torch.bfloat16:
            key, value = key.float(), value.float()
        return cls._with(problem, contiguous_rows(key), contiguous_rows(value), lambda rows: rows)

    @classmethod
    def _with(cls, problem: Problem, key: Tensor, value: Tensor, filled_up: Callable[[Tensor], Tensor]) -> Inputs:
        mask = problem.mask
        query_segments, key_segments = mask.segments or (None, None)
        explicit = mask.explicit
        if explicit is not None and explicit.dtype != torch.bool:
            explicit = explicit.float()

        key_bias = less = None
        if problem.key_bias is not None:
            a, c = lowered(problem)
            heads = problem.query.shape[:2]
            key_bias, less = contiguous_rows(a).expand(*heads, -1), c.expand(*heads, problem.query.shape[2])

        def rows(tensor: Tensor) -> Tensor:
            return contiguous_rows(filled_up(tensor.float()))

        def table(given: OffsetTable | None) -> Tensor | None:
            return None if given is None else filled_up(given.values.float()).contiguous()

        def on(axis: Axis, *, listed: bool) -> AxisInputs:
            return AxisInputs(
                None if axis.relative_query is None or axis.relative_keys is None else rows(axis.relative_query),
                table(axis.relative_keys),
                table(axis.relative_queries),
                table(axis.relative_values),
                None if axis.bias is None else axis.bias.values.float().contiguous(),
                _listed(axis.positions.query, axis.positions.query_length) if listed else None,
                _listed(axis.positions.key, axis.positions.key_length) if listed else None,
            )

        first, *others = problem.axes
        return cls(
            rows(problem.query),
            key,
            value,
            (on(first, listed=first.positions.origin is None), *(on(axis, listed=True) for axis in others)),
            None if mask.key_mask is None else mask.key_mask.contiguous(),
            None if query_segments is None else query_segments.long().contiguous(),
            None if key_segments is None else key_segments.long().contiguous(),
            explicit,
            key_bias,
            less,
        )


def rows_of(tensor: Tensor) -> Tensor:
    """[B, H, L, width] in float32, the last axis contiguous, with zeros up to a multiple of LANES."""
    return contiguous_rows(_filled_up(tensor.float()))


def _listed(place: Position, length: int) -> Tensor:
    """[L] or [B, L]: where the elements of a side stand."""
    return _digits(place, length) if isinstance(place, Digits) else place.expand(length, CPU).contiguous()


@lru_cache(maxsize=16)
def _digits(place: Digits, length: int) -> Tensor:
    """The list of digits, which the layers of a model ask for one after the other."""
    return place.expand(length, CPU)


def contiguous_rows(tensor: Tensor) -> Tensor:
    """The same numbers, the last axis contiguous."""
    return tensor if tensor.stride(-1) == 1 else tensor.contiguous()


def _filled_up(tensor: Tensor) -> Tensor:
    """With zeros up to a multiple of LANES in the last axis."""
    spare = -tensor.shape[-1] % LANES
    return torch.nn.functional.pad(tensor, (0, spare)) if spare else tensor


class Outputs(NamedTuple):
    """What the forward pass writes, contiguous float32, less what is None; the backward pass reads all but lse."""

    output: Tensor
    lse: Tensor | None
    maximum: Tensor | None
    total: Tensor | None


class AxisGradients(NamedTuple):
    """What the backward pass writes for an axis; None where it is not wanted."""

    relative_query: Tensor | None
    relative_keys: Tensor | None
    relative_queries: Tensor | None
    relative_values: Tensor | None
    bias: Tensor | None


NO_AXIS_GRADIENTS = AxisGradients(None, None, None, None, None)


class Gradients(NamedTuple):
    """By the output and lse, and what the backward pass writes, contiguous float32; None where it is not wanted."""

    output: Tensor
    lse: Tensor
    query: Tensor | None
    key: Tensor | None
    value: Tensor | None
    explicit_mask: Tensor | None
    key_bias: Tensor | None
    axes: Sequence[AxisGradients]


def packed(
    problem: Problem,
    inputs: Inputs,
    outputs: Outputs,
    gradients: Gradients | None,
    blocks: tuple[int, int],
    threads: int,
    seed: int,
) -> bytearray:
    """The bytes of the call, with the workspace's address still 0, and behind them those of the axes but the first.

    blocks: how many queries and keys meet at a time. seed: of dropout; any number where there is none.
    """
    limits, (first, *others) = _limits(problem.sequence.positions), problem.axes
    listed = inputs.axes[0].query_positions is not None
    query, key, value = inputs[:3]
    batch, heads, queries, width = query.shape
    _, key_heads, keys, value_width = value.shape
    pairs = batch, heads, queries, keys
    by_axis = [NO_AXIS_GRADIENTS] * len(problem.axes) if gradients is None else gradients.axes
    call = bytearray(CALL.size + AXIS.size * len(others))
    for n, axis in enumerate(others):
        AXIS.pack_into(call, CALL.size + AXIS.size * n, *_axis(axis, inputs.axes[n + 1], by_axis[n + 1], NO_LIMITS))
    CALL.pack_into(
        call, 0,
        *_rows(query), *_rows(key), *_rows(value), *_axis(first, inputs.axes[0], by_axis[0], limits),
        ctypes.addressof(ctypes.c_char.from_buffer(call)) + CALL.size if others else 0, len(others),
        _at(inputs.key_mask), _at(inputs.query_segments), _at(inputs.key_segments),
        *(NO_MASK if inputs.explicit is None else _mask(inputs.explicit, pairs)),
        *(NO_KEY_BIAS if inputs.key_bias is None else _key_bias(inputs.key_bias, inputs.less)),
        batch, heads, key_heads, queries, keys, width, value_width,
        first.positions.known_origin or 0, *(NO_LIMITS if listed else limits),
        problem.scale, problem.softcap or 0.0, 1.0 - problem.dropout_p, seed,
        _at(outputs.output), _at(outputs.lse), _at(outputs.maximum), _at(outputs.total),
        *(FORWARD_ALONE if gradients is None else _gradients(gradients, pairs)), *blocks, threads,
        int(key.dtype == torch.bfloat16), 0,
    )  # fmt: skip
    return call


def _axis(axis: Axis, inputs: AxisInputs, gradients: AxisGradients, limits: tuple[int, int]) -> list[int]:
    """limits: of listed positions."""
    relative_query = inputs.relative_query
    fields = list(_rows(relative_query))
    for values, table, gradient in zip(inputs[1:5], axis[2:], gradients[1:], strict=True):
        fields += NO_BAND if values is None or table is None else _band(values, table, gradient)
    fields += 0 if relative_query is None else relative_query.shape[3], _at(gradients.relative_query)
    fields += NO_LISTS if inputs.query_positions is None else (*_lists(inputs), *limits)
    return fields


def _at(tensor: Tensor | None) -> int:
    return 0 if tensor is None else tensor.data_ptr()


def _limits(positions: Positions) -> tuple[int, int]:
    lowest, highest = positions.lowest, positions.highest
    return -FAR if lowest is None else lowest, FAR if highest is None else highest


def _mask(explicit: Tensor, pairs: tuple[int, ...]) -> tuple[int, ...]:
    boolean = explicit.dtype == torch.bool
    return _at(explicit) if boolean else 0, 0 if boolean else _at(explicit), *explicit.expand(pairs).stride()


def _lists(inputs: AxisInputs) -> tuple[int, ...]:
    query, key = inputs.query_positions, inputs.key_positions
    return _at(query), _at(key), _batch_step(query), _batch_step(key)


def _gradients(gradients: Gradients, pairs: tuple[int, ...]) -> tuple[Any, ...]:
    by_mask = gradients.explicit_mask
    return (
        *_rows(gradients.output), _at(gradients.lse), *(_at(tensor) for tensor in gradients[2:5]), _at(by_mask),
        *(NO_ROWS if by_mask is None else by_mask.expand(pairs).stride()), _at(gradients.key_bias),
    )  # fmt: skip


def _batch_step(positions: Tensor | None) -> int:
    """From a batch element's positions to the next one's; 0 where all share them."""
    return 0 if positions is None or positions.dim() == 1 or positions.shape[0] == 1 else positions.stride(0)


def _key_bias(key_bias: Tensor, less: Tensor | None) -> tuple[int, ...]:
    assert less is not None
    return key_bias.data_ptr(), less.data_ptr(), *key_bias.stride()[:2], *less.stride()


def _rows(tensor: Tensor | None) -> Any:
    return NO_ROWS if tensor is None else (tensor.data_ptr(), *tensor.stride()[:3])


def _band(values: Tensor, table: OffsetTable, gradient: Tensor | None) -> tuple[Any, ...]:
    heads, count = values.shape[:2]
    width = values.shape[2] if values.dim() == 3 else 1
    return (
        values.data_ptr(), _at(gradient), heads, 0 if heads == 1 else values.stride(0), count, table.first, width,
        int(table.beyond != "zero"),
    )  # fmt: skip
