"""Sums: gradients that add up over the parts of a problem."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from relattn.equation.problem import Differentiable, PerAxis, PerTable, Problem
from relattn.equation.tables import OffsetTable, wide


def zeros_like(tensor: Tensor) -> Tensor:
    """The tensor in which a gradient adds up, in the dtype of the scores."""
    dtype = torch.float64 if tensor.dtype == torch.float64 else torch.float32
    return torch.zeros(tensor.shape, dtype=dtype, device=tensor.device)


class Sums:
    """The gradients of a piece's tensors, without keys and values, which travel; needed: for which of its operator's
    tensors.
    """

    def __init__(self, problem: Problem, needed: Sequence[bool]) -> None:
        self.problem, asked = problem, iter(needed)
        wanted = Differentiable.of([tensor is not None and next(asked) for tensor in problem.leaves()])
        self.wanted = wanted._replace(key=False, value=False)
        self.sums = Differentiable.of(
            [
                zeros_like(tensor) if one and tensor is not None else None
                for one, tensor in zip(self.wanted.leaves(), problem.leaves(), strict=True)
            ]
        )
        self.others = len(list(asked))

    def add(self, part: Problem, queries: slice, keys: slice, gradients: Differentiable[Tensor | None]) -> None:
        """Add the gradients of the part with these queries and keys."""
        places = self._places(part, queries, keys).leaves()
        for place, gradient in zip(places, gradients.leaves(), strict=True):
            if place is not None and gradient is not None:
                place.add_(wide(gradient))

    def gradients(self) -> list[Tensor | None]:
        """The gradients of the operator's tensors; None where none is needed."""
        pairs = zip(self.sums.leaves(), self.problem.leaves(), strict=True)
        found = [None if one is None else one.to(tensor.dtype) for one, tensor in pairs if tensor is not None]
        return [*found, *[None] * self.others]

    def _places(self, part: Problem, queries: slice, keys: slice) -> Differentiable[Tensor | None]:
        """The parts of the sums that a part of the problem has gradients for."""
        sums, axes = self.sums, []
        for whole, narrow, of_axis in zip(self.problem.axes, part.axes, sums.axes, strict=True):
            tables = [_rows(*each) for each in zip(of_axis.tables, whole[2:], narrow[2:], strict=True)]
            axes.append(PerAxis(_of_queries(of_axis.relative_query, queries), PerTable(*tables)))
        mask, bias = sums.pair_mask, sums.key_bias
        if mask is not None and mask.shape[-1] != 1:
            mask = mask[..., keys]
        if mask is not None and mask.shape[-2] != 1:
            mask = mask[..., queries, :]
        bias = None if bias is None else bias[..., keys]
        return Differentiable(_of_queries(sums.query, queries), None, None, mask, bias, axes)


def _of_queries(whole: Tensor | None, queries: slice) -> Tensor | None:
    return None if whole is None else whole[:, :, queries]


def _rows(whole: Tensor | None, table: OffsetTable | None, narrow: OffsetTable | None) -> Tensor | None:
    """The rows that a narrower table has."""
    if whole is None or table is None or narrow is None:
        return None
    at = narrow.first - table.first
    assert isinstance(at, int)
    return whole[:, at : at + narrow.num_rows]
