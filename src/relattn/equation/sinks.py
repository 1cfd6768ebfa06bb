"""Sinks: one more logit per query in the softmax over the keys. It has no value.

    exp(S_ij) / (exp(sink) + sum_j' exp(S_ij'))  =  softmax(S)_ij * sigmoid(lse_i - sink)

So output and lse of any backend without a sink are enough to compute the output with it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from jaxtyping import Float
from torch import Tensor

from relattn.checks.tensors import check_float, check_layout, has_shape, heads_after_length, refuse_device, shape
from relattn.checks.values import kind_of
from relattn.errors import ShapeError


def check_sinks(sinks: object, batch: Sequence[int], query: Tensor) -> Tensor:
    """Floats [Hq] or [*B, Hq, Lq], as [Hq] or [B, Hq, Lq]."""
    if not isinstance(sinks, Tensor):
        raise TypeError(f"sinks: got {kind_of(sinks)}; expected a tensor [heads] or [batch, heads, queries]")
    check_layout("sinks", sinks)
    check_float("sinks", sinks)
    heads, queries = query.shape[-3], query.shape[-2]
    full = (*batch, heads, queries)
    if not has_shape(sinks, (heads,), full):
        raise ShapeError(
            f"sinks: got shape {shape(sinks)}; expected [{heads}], a number per head, or {list(full)}, one per batch "
            "element, head and query; .expand() it to one of them"
            f"{heads_after_length(has_shape(sinks, (queries,), (*batch, queries, heads)))}"
        )
    if sinks.device != query.device:
        refuse_device("sinks", sinks, query.device, "the query's")
    return sinks if sinks.dim() == 1 or len(batch) == 1 else sinks.reshape(math.prod(batch), heads, queries)


def share(
    lse: Float[Tensor, "B Hq Lq"], sinks: Float[Tensor, "Hq"] | Float[Tensor, "B Hq Lq"]
) -> Float[Tensor, "B Hq Lq 1"]:
    """sigmoid(lse - sink): the share of a row's weights that the sink leaves; any finite number where lse is -inf.

    A sink of -inf takes nothing. The gradient of sigmoid(x) is computed as s * (1 - s). Where the sink takes little, s
    rounds to almost 1, and 1 - s would keep few of its digits. So the smaller share, 1/2 at most, is computed as a
    sigmoid. The other share is 1 minus it.
    """
    sinks = sinks.to(lse.dtype)
    if sinks.dim() == 1:
        sinks = sinks.unsqueeze(-1)
    finite = lse.clamp(min=torch.finfo(lse.dtype).min)  # -inf - (-inf) would be NaN
    logit = finite - sinks
    smaller = torch.sigmoid(torch.where(logit < 0.0, logit, -logit))
    return torch.where(logit < 0.0, smaller, 1.0 - smaller).unsqueeze(-1)
