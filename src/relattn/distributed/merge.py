"""Merge: the answer over the keys of several parts, from the answers over each; and the backends for these.

With O_c and lse_c those of part c:   lse = log sum_c exp(lse_c),   O = sum_c exp(lse_c - lse) O_c
"""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor

from relattn.backends.base import Backend, MergingBackend
from relattn.backends.select import BACKENDS, select
from relattn.errors import UnsupportedError
from relattn.score.problem import Problem


def merge(
    output: Float[Tensor, "B Hq n Dv"],
    lse: Float[Tensor, "B Hq n"],
    of_part: Float[Tensor, "B Hq n Dv"],
    lse_of_part: Float[Tensor, "B Hq n"],
) -> None:
    """Merge one more part into O and lse, which are 0 and -inf before the first part."""
    both = torch.logaddexp(lse, lse_of_part)
    finite = both.masked_fill(both == -torch.inf, 0.0)  # a row that sees no key yet: e^(-inf - 0) = 0
    output.mul_((lse - finite).exp_().unsqueeze(-1))
    output.addcmul_(of_part, (lse_of_part - finite).exp_().unsqueeze(-1))
    lse.copy_(both)


def merging(name: str, problem: Problem) -> MergingBackend:
    """The backend that runs a part of a problem: the one called `name`; for "auto" the first one that can.

    Raises UnsupportedError: for a backend that cannot compute the gradients of a part.
    """
    if name != "auto":
        return _merging(select(name, problem))
    order: list[Backend] = [BACKENDS["native"], BACKENDS["tiled"]]
    if problem.query.device.type == "cuda":
        order.insert(0, BACKENDS["triton"])
    return _merging(next(backend for backend in order if not any(backend.reasons(problem))))


def _merging(backend: Backend) -> MergingBackend:
    if isinstance(backend, MergingBackend):
        return backend
    usable = [name for name, other in BACKENDS.items() if isinstance(other, MergingBackend)]
    raise UnsupportedError(
        f"backend={backend.name!r} cannot run a ring: it has no gradients of a part of a softmax; "
        f"use {' or '.join(map(repr, usable))}, or rotate='all_gather'"
    )
