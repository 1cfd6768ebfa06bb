"""A call as the kernels take it: the struct `Call` of kernels/call.h, field by field."""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor

from relattn.score.key_bias import lowered
from relattn.score.padding import Sight
from relattn.score.positions import Positions
from relattn.score.problem import Problem
from relattn.score.table import OffsetTable

LANES = 16
"""Floats in the widest vector: the kernels read rows of a multiple of it."""

FAR = 2**63 // 4
"""Beyond every offset: the kernels' sign for a limit that is none."""

NO_LIMITS = (-FAR, FAR)
NO_ROWS = (0, 0, 0, 0)
NO_BAND = (0, 0, 0, 0, 0, 0, 0, 0)
NO_MASK = (0, 0, 0, 0, 0, 0)
NO_LISTS = (0, 0, 0, 0)
NO_KEY_BIAS = (0,) * 7
FORWARD_ALONE = (0,) * 15
"""What stands in the place of gradients where none is asked."""
STRUCT = struct.Struct("=81q3d25q")


class Inputs(NamedTuple):
    """A problem's tensors as the kernels read them: their last axes contiguous.

    Tables are contiguous [H, R, width]; a bias [H, R]. `of` makes all of them float32, and their widths multiples of
    LANES. `of_few` leaves widths as they are, and keys and values in bfloat16 where both are. Positions are None where
    both sides are runs. key_bias a [B, Hq, Lk] and less c [B, Hq, Lq]: views of what `score.key_bias.lowered` gives.
    """

    query: Tensor
    key: Tensor
    value: Tensor
    relative_query: Tensor | None
    relative_keys: Tensor | None
    relative_queries: Tensor | None
    relative_values: Tensor | None
    bias: Tensor | None
    key_mask: Tensor | None
    query_segments: Tensor | None
    key_segments: Tensor | None
    explicit: Tensor | None
    query_positions: Tensor | None
    key_positions: Tensor | None
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
        mask, axis = problem.mask, problem.sequence
        listed = axis.positions.origin is None
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

        return cls(
            rows(problem.query),
            key,
            value,
            None if axis.relative_query is None or axis.relative_keys is None else rows(axis.relative_query),
            table(axis.relative_keys),
            table(axis.relative_queries),
            table(axis.relative_values),
            None if axis.bias is None else axis.bias.values.float().contiguous(),
            None if mask.key_mask is None else mask.key_mask.contiguous(),
            None if query_segments is None else query_segments.long().contiguous(),
            None if key_segments is None else key_segments.long().contiguous(),
            explicit,
            axis.positions.query_positions().contiguous() if listed else None,
            axis.positions.key_positions().contiguous() if listed else None,
            key_bias,
            less,
        )


def rows_of(tensor: Tensor) -> Tensor:
    """[B, H, L, width] in float32, the last axis contiguous, with zeros up to a multiple of LANES."""
    return contiguous_rows(_filled_up(tensor.float()))


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


class Gradients(NamedTuple):
    """By the output and lse, and what the backward pass writes, contiguous float32; None where it is not wanted."""

    output: Tensor
    lse: Tensor
    query: Tensor | None
    key: Tensor | None
    value: Tensor | None
    relative_query: Tensor | None
    relative_keys: Tensor | None
    relative_queries: Tensor | None
    relative_values: Tensor | None
    bias: Tensor | None
    explicit_mask: Tensor | None
    key_bias: Tensor | None


NO_TABLE_GRADIENTS = (None,) * 4


def packed(
    problem: Problem,
    inputs: Inputs,
    outputs: Outputs,
    gradients: Gradients | None,
    blocks: tuple[int, int],
    threads: int,
    seed: int,
) -> bytearray:
    """The bytes of the struct; the last 8 are the workspace's address, still 0.

    blocks: how many queries and keys meet at a time. seed: of dropout; any number where there is none.
    """
    axis, limits = problem.sequence, _limits(problem.sequence.positions)
    listed = inputs.query_positions is not None
    query, key, value, relative_query = inputs[:4]
    batch, heads, queries, width = query.shape
    _, key_heads, keys, value_width = value.shape
    pairs = batch, heads, queries, keys
    by_tables = NO_TABLE_GRADIENTS if gradients is None else gradients[6:10]
    bands: list[int] = []
    for values, table, gradient in zip(inputs[4:8], axis[2:], by_tables, strict=True):
        bands += NO_BAND if values is None or table is None else _band(values, table, gradient)
    call = bytearray(STRUCT.size)
    STRUCT.pack_into(
        call, 0,
        *_rows(query), *_rows(key), *_rows(value), *_rows(relative_query), *bands,
        _at(inputs.key_mask), _at(inputs.query_segments), _at(inputs.key_segments),
        *(NO_MASK if inputs.explicit is None else _mask(inputs.explicit, pairs)),
        *(NO_KEY_BIAS if inputs.key_bias is None else _key_bias(inputs.key_bias, inputs.less)),
        batch, heads, key_heads, queries, keys, width, value_width,
        0 if relative_query is None else relative_query.shape[3],
        axis.positions.known_origin or 0, *(NO_LIMITS if listed else limits),
        *(_lists(inputs) if listed else NO_LISTS), *(limits if listed else NO_LIMITS),
        problem.scale, problem.softcap or 0.0, 1.0 - problem.dropout_p, seed,
        _at(outputs.output), _at(outputs.lse), _at(outputs.maximum), _at(outputs.total),
        *(FORWARD_ALONE if gradients is None else _gradients(gradients, pairs)), *blocks, threads,
        int(key.dtype == torch.bfloat16), 0,
    )  # fmt: skip
    return call


def _at(tensor: Tensor | None) -> int:
    return 0 if tensor is None else tensor.data_ptr()


def _limits(positions: Positions) -> tuple[int, int]:
    lowest, highest = positions.lowest, positions.highest
    return -FAR if lowest is None else lowest, FAR if highest is None else highest


def _mask(explicit: Tensor, pairs: tuple[int, ...]) -> tuple[int, ...]:
    boolean = explicit.dtype == torch.bool
    return _at(explicit) if boolean else 0, 0 if boolean else _at(explicit), *explicit.expand(pairs).stride()


def _lists(inputs: Inputs) -> tuple[int, ...]:
    query, key = inputs.query_positions, inputs.key_positions
    return _at(query), _at(key), _batch_step(query), _batch_step(key)


def _gradients(gradients: Gradients, pairs: tuple[int, ...]) -> tuple[Any, ...]:
    by_mask = gradients.explicit_mask
    return (
        *_rows(gradients.output), _at(gradients.lse), *(_at(tensor) for tensor in gradients[2:6]), _at(by_mask),
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
