"""Sums: gradients that add up over the parts of a problem."""

from __future__ import annotations

import torch
from torch import Tensor

from relattn.backends.problem_arguments import flat, named, tensors_of
from relattn.equation.problem import TABLES, Problem
from relattn.equation.tables import wide


def zeros_like(tensor: Tensor) -> Tensor:
    """The tensor in which a gradient adds up, in the dtype of the scores."""
    dtype = torch.float64 if tensor.dtype == torch.float64 else torch.float32
    return torch.zeros(tensor.shape, dtype=dtype, device=tensor.device)


class Sums:
    """The gradients of a piece's tensors: those that `wanted` names, among `names`."""

    def __init__(self, problem: Problem, wanted: list[str], names: list[str]) -> None:
        self.problem, self.wanted, self.names = problem, wanted, names
        by_name = tensors_of(named(flat(problem, None)))
        self.tensors = {name: tensor for name, tensor in by_name.items() if tensor is not None and name in wanted}
        self.sums = {name: zeros_like(tensor) for name, tensor in self.tensors.items()}

    def add(self, part: Problem, queries: slice, keys: slice, gradients: dict[str, Tensor]) -> None:
        """Add the gradients of the part with these queries and keys."""
        for name in self.wanted:
            self._place(name, part, queries, keys).add_(wide(gradients[name]))

    def gradients(self) -> list[Tensor | None]:
        """The gradients in the order of `names`; None where no gradient is wanted."""
        return [self.sums[name].to(self.tensors[name].dtype) if name in self.sums else None for name in self.names]

    def _place(self, name: str, part: Problem, queries: slice, keys: slice) -> Tensor:
        """The part of a sum that a part of the problem has a gradient for."""
        whole = self.sums[name]
        if name.split(" of ")[0] in ("query", "relative_query"):  # on any axis
            return whole[:, :, queries]
        if name == "explicit_mask":
            of_keys = whole if whole.shape[-1] == 1 else whole[..., keys]
            return of_keys if whole.shape[-2] == 1 else of_keys[..., queries, :]
        if name == "key_bias":
            return whole[..., keys]
        if name not in TABLES:
            return whole
        first, narrow = self.problem.sequence().tables()[name].first, part.sequence().tables()[name]
        at = narrow.first - first
        assert isinstance(at, int)
        return whole[:, at : at + narrow.num_rows]
