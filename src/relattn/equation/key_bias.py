"""The bias of a key: a_j, added to the scores of all queries. It may grow with the length.

If a is a prefix sum F, the numbers grow and their differences do not. In float32 F + S in the end keeps no digit of S.
A softmax is the same for a_j - c_i with every c_i. So a backend first subtracts a number near those of the query's
keys, then adds the difference to the scores, and adds the number to lse at the end.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from jaxtyping import Float, Int64
from torch import Tensor

from relattn.checks.tensors import broadcasts, check_layout, has_shape, heads_after_length, refuse_device, shape
from relattn.checks.values import kind_of
from relattn.equation.problem import Problem
from relattn.errors import ShapeError
from relattn.positions.certainty import can_be_read
from relattn.positions.positions import Positions, reach_of_neighbours, reach_of_positions


def check_key_bias(key_bias: object, batch: Sequence[int], query: Tensor, key: Tensor) -> Tensor:
    """Finite numbers as [B or 1, Hq or 1, Lk]; each of *B and Hq has its own size or 1.

    In a graph or on a GPU the device checks that the numbers are finite. Under torch.func no check is made.
    """
    if not isinstance(key_bias, Tensor):
        raise TypeError(f"key_bias: got {kind_of(key_bias)}; expected a tensor [batch, heads, key length]")
    check_layout("key_bias", key_bias)
    if key_bias.dtype not in (query.dtype, torch.float32):
        floats = " or ".join(dict.fromkeys(map(str, (query.dtype, torch.float32))))
        way_out = "convert it with .to()" if key_bias.is_floating_point() else "to drop keys give key_mask"
        raise TypeError(f"key_bias: got dtype {key_bias.dtype}; expected {floats}; {way_out}")
    full = (*batch, query.shape[-3], key.shape[-2])
    fits = key_bias.dim() == len(full) and key_bias.shape[-1] == full[-1]
    if not fits or not broadcasts(key_bias.shape, full):
        raise ShapeError(
            f"key_bias: got shape {shape(key_bias)}; expected {list(full)} (batch, heads, keys), 1 where batch "
            "elements or heads share it; give an axis that it lacks with .unsqueeze()"
            f"{heads_after_length(has_shape(key_bias, (*batch, query.shape[-2], key.shape[-3])))}"
        )
    if key_bias.device != query.device:
        refuse_device("key_bias", key_bias, query.device, "the query's")
    _check_finite(key_bias)
    if len(batch) == 1:
        return key_bias
    if all(size == 1 for size in key_bias.shape[:-2]):
        return key_bias.reshape(1, *key_bias.shape[-2:])
    return key_bias.expand(*batch, *key_bias.shape[-2:]).reshape(math.prod(batch), *key_bias.shape[-2:])


def _check_finite(key_bias: Tensor) -> None:
    expected = "expected finite numbers; drop keys with key_mask"
    if can_be_read(key_bias):
        if not key_bias.isfinite().all():
            came = key_bias[~key_bias.isfinite()][0].item()
            raise ValueError(f"key_bias: got {came}; {expected}")
    elif not torch._C._are_functorch_transforms_active() and not key_bias.is_meta:
        torch._assert_async(  # pyright: ignore[reportPrivateImportUsage]
            key_bias.isfinite().all(), f"key_bias: got a number that is not finite; {expected}"
        )


def lowered(problem: Problem) -> tuple[Float[Tensor, "#B #Hq Lk"], Float[Tensor, "#B #Hq #Lq"]]:
    """a in the dtype of the scores, and c. a_j - c_i is added to the scores, and c_i to lse.

    Causality and window let a query see a first and a last key. c_i is the larger of their two numbers, which is the
    largest of all where a only grows or only falls. c_i is 0 for explicit positions with segments, and for explicit
    positions in a graph. A part of a call has the numbers of the whole.
    """
    assert problem.key_bias is not None
    a, positions = problem.key_bias.to(problem.score_dtype()), problem.sequence().positions
    known = a.detach()
    if problem.key_shift is not None:
        return a, problem.key_shift
    no_ends = positions.key_length == 0
    if positions.lowest is None and positions.highest is None and not no_ends:
        return a, torch.maximum(known[..., :1], known[..., -1:])
    if positions.origin is None:
        no_ends = no_ends or problem.mask.segments is not None or torch.compiler.is_compiling()
    if no_ends:
        return a, known.new_zeros(*a.shape[:2], 1)
    first, last = _ends(positions)
    return a, torch.maximum(_at(known, first), _at(known, last))


def _ends(positions: Positions) -> tuple[Int64[Tensor, "*B Lq"], Int64[Tensor, "*B Lq"]]:
    """For each query the index of the first and of the last key that it sees by its offset; any where it sees none."""
    lowest, highest, count, origin = positions.lowest, positions.highest, positions.key_length, positions.origin
    if origin is not None:
        lowest, highest = (None if limit is None else limit - origin for limit in (lowest, highest))
        first, end = reach_of_neighbours(positions.query_length, count, lowest, highest, positions.device)
        return first.clamp(max=count - 1), (end - 1).clamp(min=0)
    query, key = positions.query_positions(), positions.key_positions()
    batch = torch.broadcast_shapes(query.shape[:-1], key.shape[:-1])
    key, order = key.expand(*batch, -1).sort()
    first, end = reach_of_positions(query.expand(*batch, -1).contiguous(), key, lowest, highest)
    return order.gather(-1, first.clamp(max=count - 1)), order.gather(-1, (end - 1).clamp(min=0))


def _at(a: Float[Tensor, "#B #Hq Lk"], index: Int64[Tensor, "*B Lq"]) -> Float[Tensor, "#B #Hq Lq"]:
    """a[..., index], with one index for all batch elements or one for each."""
    if index.dim() == 1:
        return a[..., index]
    batch, heads = index.shape[0], a.shape[1]
    return a.expand(batch, -1, -1).gather(-1, index.unsqueeze(1).expand(-1, heads, -1))
