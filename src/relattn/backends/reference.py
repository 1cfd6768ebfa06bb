"""The reference backend: the score equation pair by pair in float64, to be read beside the papers."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from relattn.backends.operators import reasons_of_dropout
from relattn.equation.problem import Problem
from relattn.equation.tables import OffsetTable
from relattn.equation.visibility import Visibility


class ReferenceBackend:
    """S_ij = scale * (q_i . k_j + r_i . RK[d] + RQ[d] . k_j) + b[d]
    S'_ij = softcap * tanh(S_ij / softcap) + a_j + mask
    O_i = sum_j softmax(S')_ij * (v_j + RV[d]).

    Every pair's rows are written out, in O(Lq Lk D) memory, and everything is float64 for all inputs. It is the
    reference for small problems.
    """

    name = "reference"

    def reasons(self, problem: Problem) -> list[str]:
        """It runs everything except dropout of a part of a call."""
        return reasons_of_dropout(problem)

    def run(self, problem: Problem) -> tuple[Tensor, Tensor | None]:
        """The equation as written, with zeros in place of padding."""
        hidden = problem.mask.hidden()
        problem = Visibility.of_pairs(problem.mask, hidden, problem.key.shape[1]).cleaned(problem)
        q = problem.query.double()
        k = problem.key.double().repeat_interleave(problem.num_groups(), dim=1)
        v = problem.value.double().repeat_interleave(problem.num_groups(), dim=1)
        offsets = [axis.positions.offsets() for axis in problem.axes]

        products = torch.einsum("bhid,bhjd->bhij", q, k)
        for axis, d in zip(problem.axes, offsets, strict=True):
            if axis.relative_keys is not None:
                r = q if axis.relative_query is None else axis.relative_query.double()
                products = products + torch.einsum("bhid,bhijd->bhij", r, _pairs(axis.relative_keys, d))
            if axis.relative_queries is not None:
                products = products + torch.einsum("bhijd,bhjd->bhij", _pairs(axis.relative_queries, d), k)
        scores = problem.scale * products
        for axis, d in zip(problem.axes, offsets, strict=True):
            if axis.bias is not None:
                scores = scores + _pairs(axis.bias, d)
        if problem.softcap is not None:
            scores = problem.softcap * torch.tanh(scores / problem.softcap)
        if problem.key_bias is not None:
            scores = scores + problem.key_bias.double().unsqueeze(-2)
        added = problem.mask.added()
        if added is not None:
            scores = scores + added.double()

        if hidden is None:
            hidden = scores.new_zeros((), dtype=torch.bool)
        hidden = hidden.expand(scores.shape)
        alive = ~hidden.all(dim=-1, keepdim=True)
        scores = scores.masked_fill(hidden & alive, -torch.inf)  # a row without any key stays finite, and is zeroed
        weights = scores.softmax(dim=-1)
        weights = F.dropout(weights, problem.dropout_p)

        output = weights @ v
        for axis, d in zip(problem.axes, offsets, strict=True):
            if axis.relative_values is not None:
                output = output + torch.einsum("bhij,bhijd->bhid", weights, _pairs(axis.relative_values, d))
        output = output.masked_fill(~alive, 0.0).to(problem.output_dtype)
        if not problem.return_lse:
            return output, None
        lse = problem.with_values(scores.logsumexp(dim=-1)).masked_fill(~alive.squeeze(-1), -torch.inf)
        return output, lse.to(problem.score_dtype())


def _pairs(table: OffsetTable, offsets: Tensor) -> Tensor:
    """T[d_ij] of every pair in float64, [B or 1, H or 1, Lq, Lk, *D]; offsets [Lq, Lk] or [B, Lq, Lk]."""
    rows = table.to(torch.float64).at(offsets)
    return rows.transpose(0, 1) if offsets.dim() == 3 else rows.unsqueeze(0)
