"""A problem's tensors as the kernels read them: float32 rows, contiguous tables, positions as lists."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import NamedTuple

import torch
from torch import Tensor

from relattn.equation.key_bias import lowered
from relattn.equation.problem import Axis, Problem
from relattn.equation.visibility import Visibility
from relattn.positions.grid import GridPositions
from relattn.positions.position import Position

LANES = 16
"""Floats in the widest vector: the kernels read rows whose length is a multiple of it."""

MOST_AXES = 8
"""The most axes, the sequence included, as in kernels/call.h."""

ELEMENT_TYPES = {torch.float32: 0, torch.bfloat16: 1, torch.float16: 2}
"""The dtypes in which few queries read keys and values, as in kernels/call.h."""

CPU = torch.device("cpu")


class AxisInputs(NamedTuple):
    """The tensors of an axis, as the kernels read them; positions are None on a sequence of contiguous positions."""

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
    LANES. `of_few` leaves widths as they are, and keys and values in half precision if both have the same. key_bias a
    [B, Hq, Lk] and key_shift c [B, Hq, Lq]: views of the results of `equation.key_bias.lowered`.
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
    key_shift: Tensor | None

    @classmethod
    def of(cls, problem: Problem) -> Inputs:
        """The inputs of a problem, with zeros in place of its padding."""
        visibility = Visibility.of(problem.mask, problem.query.shape[0], problem.key.shape[1])
        if visibility.keys is not None or visibility.queries is not None:
            problem = Visibility(*(None if side is None or side.all() else side for side in visibility)).cleaned(
                problem
            )
        key, value = rows_of(problem.key), rows_of(problem.value)
        return cls._with(problem, key, value, _filled_up)

    @classmethod
    def of_few(cls, problem: Problem) -> Inputs:
        """The inputs of a problem with few queries; its kernels skip keys that no query sees."""
        key, value = problem.key, problem.value
        if key.dtype != value.dtype or key.dtype not in ELEMENT_TYPES:
            key, value = key.float(), value.float()
        key, value = (contiguous_rows(tensor.resolve_neg()) for tensor in (key, value))
        return cls._with(problem, key, value, lambda rows: rows)

    @classmethod
    def _with(cls, problem: Problem, key: Tensor, value: Tensor, filled_up: Callable[[Tensor], Tensor]) -> Inputs:
        mask = problem.mask
        query_segments, key_segments = mask.segments or (None, None)
        explicit = mask.pairs
        if explicit is not None and explicit.dtype != torch.bool:
            explicit = as_floats(explicit)

        key_bias = key_shift = None
        if problem.key_bias is not None:
            a, c = lowered(problem)
            heads = problem.query.shape[:2]
            key_bias = contiguous_rows(as_floats(a)).expand(*heads, -1)
            key_shift = as_floats(c).expand(*heads, problem.query.shape[2])

        def rows(tensor: Tensor) -> Tensor:
            return contiguous_rows(filled_up(as_floats(tensor)))

        def on(axis: Axis, *, listed: bool) -> AxisInputs:
            tables = (None if t is None else _contiguous_heads(filled_up(as_floats(t.values))) for t in axis[2:5])
            relative_keys, relative_queries, relative_values = tables
            return AxisInputs(
                None if axis.relative_query is None or axis.relative_keys is None else rows(axis.relative_query),
                relative_keys,
                relative_queries,
                relative_values,
                None if axis.bias is None else contiguous_rows(as_floats(axis.bias.values)),
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
            key_shift,
        )


def as_floats(tensor: Tensor) -> Tensor:
    """The numbers in float32, as they lie in memory: a lazy negation of torch is carried out."""
    return tensor.float().resolve_neg()


def rows_of(tensor: Tensor) -> Tensor:
    """[B, H, L, width] in float32, the last axis contiguous, with zeros up to a multiple of LANES."""
    return contiguous_rows(_filled_up(as_floats(tensor)))


def _listed(place: Position, length: int) -> Tensor:
    """[L] or [B, L]: where the elements of a side stand."""
    return _digits(place, length) if isinstance(place, GridPositions) else place.expand(length, CPU).contiguous()


@lru_cache(maxsize=16)
def _digits(place: GridPositions, length: int) -> Tensor:
    """The list of digits. It is kept, because all layers of a model ask for it."""
    return place.expand(length, CPU)


def contiguous_rows(tensor: Tensor) -> Tensor:
    """The same numbers, the last axis contiguous."""
    return tensor if tensor.stride(-1) == 1 else tensor.contiguous()


def _contiguous_heads(table: Tensor) -> Tensor:
    """[H, R, width], the rows of a head side by side; a view of some of a table's rows is so already."""
    return table if table.stride()[1:] == (table.shape[2], 1) else table.contiguous()


def _filled_up(tensor: Tensor) -> Tensor:
    """The numbers with zeros up to a multiple of LANES in the last axis."""
    spare = -tensor.shape[-1] % LANES
    return torch.nn.functional.pad(tensor, (0, spare)) if spare else tensor
