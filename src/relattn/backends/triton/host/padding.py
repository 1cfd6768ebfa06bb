"""A problem without its padding: the kernels load whole tiles of rows, and 0 * NaN of an unseen row is NaN.

Keys that causality and window hide from every query are left out, by a view. Where segments or masks hide keys, or a
query sees no key, keys and values (and queries) are copied with zeros in place of these rows, O(L D).
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor

from relattn.equation.mask import Mask
from relattn.equation.problem import Problem
from relattn.equation.visibility import Visibility, keys_in_reach, with_zeros, within_reach


def without_padding(problem: Problem) -> Problem:
    """The problem with the keys in reach, with zeros for keys that no query sees and for queries that see no key."""
    problem = within_reach(problem)
    seen = Visibility.of(problem.mask, problem.query.shape[0], problem.key.shape[1])
    return problem if seen.keys is None and seen.queries is None else seen.cleaned(problem)


def with_padding(whole: Problem, gradient: Float[Tensor, "*B L F"]) -> Float[Tensor, "*B Lk F"]:
    """The gradient by the keys, or values, of the whole problem, from the gradient by the keys in reach."""
    first, end = keys_in_reach(whole.axes[0].positions)
    return F.pad(gradient, (0, 0, first, whole.key.shape[2] - end))


def of_seeing_rows(
    mask: Mask,
    maximum: Float[Tensor, "B Hq Lq"],
    by_output: Float[Tensor, "B Hq Lq Dv"],
    by_lse: Float[Tensor, "B Hq Lq"],
) -> tuple[Float[Tensor, "B Hq Lq Dv"], Float[Tensor, "B Hq Lq"]]:
    """The gradients by output and lse, with zeros for queries that see no key: they may hold anything there."""
    _, queries = mask.may_leave_out()
    if not queries:
        return by_output, by_lse
    sees_a_key = maximum != -torch.inf
    return with_zeros(by_output, sees_a_key), by_lse.masked_fill(~sees_a_key, 0.0)
