"""A problem's tensors as the kernels read them: float32 rows, contiguous tables, explicit positions."""

from __future__ import annotations

from functools import lru_cache
from typing import NamedTuple

import torch
from torch import Tensor

from relattn.equation.key_bias import lowered
from relattn.equation.problem import Axis, Problem
from relattn.equation.visibility import Visibility, with_zeros
from relattn.equation.visible_blocks import PAIRS_TO_READ, SIZE, Blocks
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

    Tables are contiguous [H, R, width]; a bias [H, R]. All of them are float32, and their widths multiples of LANES.
    For few queries widths stay as they are, and keys and values in half precision if both have the same. blocks: None
    without a mask; if the caller gives none, also where all keys are one block, and for few pairs. key_bias a [B, Hq,
    Lk] and key_shift c [B, Hq, Lq]: views of the results of `equation.key_bias.lowered`.
    """

    query: Tensor
    key: Tensor
    value: Tensor
    axes: tuple[AxisInputs, ...]
    key_mask: Tensor | None
    query_segments: Tensor | None
    key_segments: Tensor | None
    explicit: Tensor | None
    blocks: Blocks | None
    key_bias: Tensor | None
    key_shift: Tensor | None

    @classmethod
    def of(cls, problem: Problem, *, few: bool = False) -> Inputs:
        """The inputs of a problem, without a look at any number but those of masks.

        few: for the kernels for few queries.
        """
        lanes, dtype, mask = LANES, torch.float32, problem.mask
        if few:
            lanes = 1
            if problem.key.dtype == problem.value.dtype and problem.key.dtype in ELEMENT_TYPES:
                dtype = problem.key.dtype
        query_segments, key_segments = mask.segments or (None, None)
        explicit, key_bias, key_shift = mask.pairs, None, None
        if explicit is not None and explicit.dtype != torch.bool:
            explicit = explicit.float().resolve_neg()
        if problem.key_bias is not None:
            a, c = lowered(problem)
            heads = problem.query.shape[:2]
            key_bias = rows_of(a, 1).expand(*heads, -1)
            key_shift = c.float().resolve_neg().expand(*heads, problem.query.shape[2])
        blocks, without_mask = mask.blocks, mask.key_mask is mask.segments is mask.pairs is None
        if blocks is None and not without_mask and problem.key.shape[2] > SIZE and problem.num_pairs() >= PAIRS_TO_READ:
            blocks = Blocks.of(mask, has_bias=problem.has_bias())
        axes = []
        for axis in problem.axes:
            axes.append(_axis(axis, lanes, is_explicit=bool(axes) or axis.positions.origin is None))
        return cls(
            rows_of(problem.query, lanes),
            rows_of(problem.key, lanes, dtype),
            rows_of(problem.value, lanes, dtype),
            tuple(axes),
            None if mask.key_mask is None else mask.key_mask.contiguous(),
            None if query_segments is None else query_segments.long().contiguous(),
            None if key_segments is None else key_segments.long().contiguous(),
            explicit,
            blocks,
            key_bias,
            key_shift,
        )


def without_padding(problem: Problem, *, forward: bool) -> Problem:
    """The problem with zeros in place of its padding where its content would matter.

    forward: for the forward pass, where a hidden score becomes -inf whatever it was, and only 0 * v remains. The
        kernels for few queries need neither: they skip keys that no query sees.
    """
    seen = Visibility.of(problem.mask, problem.query.shape[0], problem.key.shape[1])
    if seen.keys is None and seen.queries is None:
        return problem
    seen = Visibility(*(None if side is None or side.all() else side for side in seen))
    if not forward:
        return seen.cleaned(problem)
    if seen.keys is not None and not problem.value.sum(dtype=torch.float32).isfinite():
        return problem.replace(value=with_zeros(problem.value, seen.keys))
    return problem


def rows_of(tensor: Tensor, lanes: int = LANES, dtype: torch.dtype = torch.float32) -> Tensor:
    """[..., width], the last axis contiguous, with zeros up to a multiple of `lanes`. The kernels read the numbers as
    they lie in memory: a lazy negation of torch is carried out.

    It asks first: an operation that changes nothing takes longer than the question.
    """
    if tensor.dtype != dtype:
        tensor = tensor.to(dtype)
    if tensor.is_neg():
        tensor = tensor.resolve_neg()
    if spare := -tensor.shape[-1] % lanes:
        tensor = torch.nn.functional.pad(tensor, (0, spare))
    return tensor if tensor.stride(-1) == 1 else tensor.contiguous()


def rows_of_table(values: Tensor, lanes: int) -> Tensor:
    """[H, R, width] or, of a bias, [H, R], with the rows of a head side by side; a view of some rows may be so."""
    values = rows_of(values, 1 if values.dim() == 2 else lanes)
    return values if lie_side_by_side(values) else values.contiguous()


def lie_side_by_side(values: Tensor) -> bool:
    """Whether the rows of a head do, by their strides alone, however many rows there are."""
    return values.stride()[1:] == (*values.shape[2:], 1)


def _axis(axis: Axis, lanes: int, *, is_explicit: bool) -> AxisInputs:
    """is_explicit: whether each token has its own position there."""
    relative_query, tables = axis.relative_query, []
    for table in axis[2:]:
        if table is None:
            tables.append(None)
            continue
        tables.append(rows_of_table(table.values, lanes))
    return AxisInputs(
        None if relative_query is None or axis.relative_keys is None else rows_of(relative_query, lanes),
        *tables,
        query_positions=_positions(axis.positions.query, axis.positions.query_length) if is_explicit else None,
        key_positions=_positions(axis.positions.key, axis.positions.key_length) if is_explicit else None,
    )


def _positions(place: Position, length: int) -> Tensor:
    """[L] or [B, L]: where the elements of a side stand."""
    return _digits(place, length) if isinstance(place, GridPositions) else place.expand(length, CPU).contiguous()


@lru_cache(maxsize=16)
def _digits(place: GridPositions, length: int) -> Tensor:
    """The positions of digits. They are kept, because all layers of a model ask for them."""
    return place.expand(length, CPU)
