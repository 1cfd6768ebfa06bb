"""Sums: gradients that add up over the parts of a problem."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from relattn.equation.part import part_of
from relattn.equation.problem import Differentiable, Problem
from relattn.equation.tables import wide


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
        self.sums = [
            zeros_like(tensor) if one and tensor is not None else None
            for one, tensor in zip(self.wanted.leaves(), problem.leaves(), strict=True)
        ]
        self.whole = problem.with_leaves(self.sums)
        self.others = len(list(asked))

    def add(self, queries: slice, keys: slice, gradients: Differentiable[Tensor | None]) -> None:
        """Add the gradients of the part with these queries and keys."""
        places = part_of(self.whole, queries, keys, self.whole.key, self.whole.value)
        for one, place, gradient in zip(self.wanted.leaves(), places.leaves(), gradients.leaves(), strict=True):
            if one and place is not None and gradient is not None:
                place.add_(wide(gradient))

    def gradients(self) -> list[Tensor | None]:
        """The gradients of the operator's tensors; None where none is needed."""
        pairs = zip(self.sums, self.problem.leaves(), strict=True)
        found = [None if one is None else one.to(tensor.dtype) for one, tensor in pairs if tensor is not None]
        return [*found, *[None] * self.others]
