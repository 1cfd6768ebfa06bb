"""The sdpa backend: PyTorch's own scaled_dot_product_attention, for problems that need nothing else."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from relattn.backends.operators import NO_FORWARD_MODE, reasons_of_dropout
from relattn.equation.problem import Problem
from relattn.interception import in_forward_mode
from relattn.positions.certainty import statically_true


class SdpaBackend:
    """O = softmax(scale * q . k + mask) @ v, by torch.nn.functional.scaled_dot_product_attention, fused where PyTorch
    fuses it.

    It keeps PyTorch's behaviour: a NaN or an infinity in a key or value that the mask hides from every query may reach
    the output and the gradients of all. The other backends keep such padding out.
    """

    name = "sdpa"

    def reasons(self, problem: Problem) -> Iterator[str]:
        """The parts of the problem for which scaled_dot_product_attention has no argument."""
        tables = {}
        for axis in problem.axes:
            tables |= axis.tables()
        for name in tables:
            yield f"it has no {name.replace('_', ' ')}"
        for name in problem.axisless_terms():
            yield f"it has no {name}"
        mask, positions = problem.mask, problem.sequence().positions
        if mask.key_mask is not None:
            yield "it has no key mask"
        if mask.segments is not None:
            yield "it has no segments"
        if mask.limits_positions() and not _is_plain_causal(problem):
            yield "its causality compares indices: no window, no explicit positions, and equal starts"
        if mask.pairs is not None and mask.limits_positions():
            yield "it takes a mask or causality, not both"
        if mask.pairs is not None and mask.pairs.dtype not in (torch.bool, problem.query.dtype):
            yield "its float mask has the dtype of the query"
        if not problem.query.dtype == problem.key.dtype == problem.value.dtype:
            yield "its query, key and value are of one dtype"
        if problem.return_lse:
            yield "it returns no log-sum-exp"
        if positions.query_length == 0 or positions.key_length == 0:
            yield "it is not defined without queries or without keys"
        if in_forward_mode():
            yield NO_FORWARD_MODE
        yield from reasons_of_dropout(problem)

    def run(self, problem: Problem) -> tuple[Tensor, None]:
        """softmax(scale * q . k + mask) @ v."""
        output = F.scaled_dot_product_attention(
            *problem[:3], attn_mask=problem.mask.pairs, dropout_p=problem.dropout_p, **_flags(problem)
        )
        return output.to(problem.output_dtype), None

    def prepared(self, problem: Problem, starts: object) -> Callable[..., Tensor]:
        """PyTorch's attention without a mask of pairs and without dropout."""
        flags = _flags(problem)

        def attend(query: Tensor, key: Tensor, value: Tensor, *absent: None) -> Tensor:
            return F.scaled_dot_product_attention(query, key, value, **flags)

        return attend

    def stepping(self, problem: Problem) -> Callable[..., Tensor]:
        """The same: no number of keys, known to have these limits, is an argument of it."""
        attend = self.prepared(problem, ())
        return lambda positions, *tensors: attend(*tensors)


def _flags(problem: Problem) -> dict[str, Any]:
    """Causality, scale, and whether query heads share key heads: a bool, also of open numbers."""
    shares = not statically_true(problem.query.shape[1] == problem.key.shape[1])
    return {"is_causal": problem.mask.limits_positions(), "scale": problem.scale, "enable_gqa": shares}


def _is_plain_causal(problem: Problem) -> bool:
    """Whether the limits allow exactly key index <= query index."""
    positions = problem.sequence().positions
    return (
        positions.lowest is None
        and statically_true(positions.highest == 0)
        and statically_true(positions.known_origin == 0)
    )
