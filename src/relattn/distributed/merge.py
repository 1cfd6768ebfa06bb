"""Merge: the answer over the keys of several parts, from the answers over each; and the backends for these.

With O_c, m_c and t_c those of part c:  m = max_c m_c,  t = sum_c exp(m_c - m) t_c,  O = sum_c exp(m_c - m) t_c O_c / t
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from relattn.backends.base import Backend, MergingBackend
from relattn.backends.problem_operator import Forward
from relattn.backends.select import BACKENDS, select
from relattn.equation.key_bias import lowered
from relattn.equation.problem import Problem
from relattn.errors import UnsupportedError


class Merged(NamedTuple):
    """The answers over the parts so far, in the dtype of the scores; weighted is O * total."""

    weighted: Float[Tensor, "B Hq n Dv"]
    maximum: Float[Tensor, "B Hq n"]
    total: Float[Tensor, "B Hq n"]

    @classmethod
    def of_nothing(cls, problems: Sequence[Problem]) -> Merged:
        """Those of the queries of all problems, one after the other, before the first part."""
        query, dtype = problems[0].query, problems[0].score_dtype()
        rows = *query.shape[:2], sum(problem.query.shape[2] for problem in problems)
        weighted = query.new_zeros(*rows, problems[0].value.shape[3], dtype=dtype)
        maximum = query.new_full(rows, -torch.inf, dtype=dtype)
        return cls(weighted, maximum, torch.zeros_like(maximum))

    def at(self, queries: slice) -> Merged:
        """Those of some queries, in the same memory."""
        return Merged(*(tensor[:, :, queries] for tensor in self))

    def add(self, part: Forward, log_base: float) -> None:
        """Merge one more part."""
        both = torch.maximum(self.maximum, part.maximum)
        finite = both.masked_fill(both == -torch.inf, 0.0)  # a row that sees no key yet: e^(-inf - 0) = 0
        before, more = (((one - finite) * log_base).exp_() for one in (self.maximum, part.maximum))
        more *= part.total
        self.weighted.mul_(before.unsqueeze(-1)).addcmul_(part.output, more.unsqueeze(-1))
        self.total.mul_(before).add_(more)
        self.maximum.copy_(both)

    def output(self) -> Float[Tensor, "B Hq n Dv"]:
        """O, in the memory of weighted; zero for a row that saw no key."""
        return self.weighted.div_(self.total.masked_fill(self.total == 0.0, 1.0).unsqueeze(-1))

    def lse(self, problem: Problem, log_base: float) -> Float[Tensor, "B Hq n"]:
        """The problem's lse."""
        lse = self.maximum * log_base + self.total.log()
        return lse if problem.key_bias is None else lse + lowered(problem)[1]


def merging(name: str, problems: Sequence[Problem]) -> MergingBackend:
    """The backend that runs the parts of all of these problems: the one called `name`; for "auto" the first one that
    can.

    Raises UnsupportedError: for a backend that cannot compute the gradients of a part.
    """
    if name != "auto":
        for problem in problems:
            select(name, problem)
        return _merging(BACKENDS[name])
    order: list[Backend] = [BACKENDS["native"], BACKENDS["blocks"]]
    if problems[0].query.device.type == "cuda":
        order.insert(0, BACKENDS["triton"])
    can = (backend for backend in order if not any(any(backend.reasons(problem)) for problem in problems))
    return _merging(next(can))


def _merging(backend: Backend) -> MergingBackend:
    if isinstance(backend, MergingBackend):
        return backend
    usable = [name for name, other in BACKENDS.items() if isinstance(other, MergingBackend)]
    raise UnsupportedError(
        f"backend={backend.name!r} cannot run a ring: it has no gradients of a part of a softmax; "
        f"use {' or '.join(map(repr, usable))}, or rotate='all_gather'"
    )
