"""A call without its padding: the kernels load whole tiles of rows, and 0 * NaN of an unseen row is NaN.

Keys that causality and window hide from every query are left out, by a view. Where segments or masks hide keys, or a
query sees no key, keys and values (and queries) are copied with zeros in place of these rows, O(L D).
"""

from __future__ import annotations

from dataclasses import replace

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor

from relattn.backends.triton.host.call import Call
from relattn.equation.mask import Mask
from relattn.equation.visibility import Visibility, keys_in_reach, with_zeros
from relattn.positions.contiguous import ContiguousPositions
from relattn.positions.positions import Positions


def without_padding(call: Call) -> Call:
    """The call with the keys in reach, with zeros for keys that no query sees and for queries that see no key."""
    call = _within_reach(call, *keys_in_reach(_positions(call)))
    visibility = Visibility.of(_mask(call), call.query.shape[0], call.key.shape[1])
    if visibility.keys is None and visibility.queries is None:
        return call
    return replace(
        call,
        query=with_zeros(call.query, visibility.queries),
        relative_query=_seeing(call.relative_query, visibility),
        key=with_zeros(call.key, visibility.keys),
        value=with_zeros(call.value, visibility.keys),
        axes=tuple(axis._replace(relative_query=_seeing(axis.relative_query, visibility)) for axis in call.axes),
    )


def with_padding(call: Call, gradient: Float[Tensor, "B Hk L F"]) -> Float[Tensor, "B Hk Lk F"]:
    """The gradient by the call's keys, or values, from the gradient by the keys in reach."""
    first, end = keys_in_reach(_positions(call))
    if (first, end) == (0, call.key.shape[2]):
        return gradient
    return F.pad(gradient, (0, 0, first, call.key.shape[2] - end))


def of_seeing_rows(
    call: Call,
    maximum: Float[Tensor, "B Hq Lq"],
    by_output: Float[Tensor, "B Hq Lq Dv"],
    by_lse: Float[Tensor, "B Hq Lq"],
) -> tuple[Float[Tensor, "B Hq Lq Dv"], Float[Tensor, "B Hq Lq"]]:
    """The gradients by output and lse, with zeros for queries that see no key: they may hold anything there."""
    if not _mask(call).may_leave_out()[1]:
        return by_output, by_lse
    sees_a_key = maximum != -torch.inf
    return with_zeros(by_output, sees_a_key), by_lse.masked_fill(~sees_a_key, 0.0)


def _mask(call: Call) -> Mask:
    segments = None
    if call.query_segments is not None and call.key_segments is not None:
        segments = call.query_segments, call.key_segments
    return Mask(_positions(call), call.key_mask, segments, call.explicit_mask)


def _positions(call: Call) -> Positions:
    lengths = call.query.shape[2], call.key.shape[2]
    sequence = call.listed_sequence
    if sequence is not None:
        sides, limits = (sequence.queries, sequence.keys), (sequence.lowest, sequence.highest)
    else:
        sides, limits = (ContiguousPositions(0), ContiguousPositions(call.offset)), (call.lowest, call.highest)
    return Positions(*sides, *lengths, call.query.device, *limits)


def _seeing(relative_query: Tensor | None, visibility: Visibility) -> Tensor | None:
    return None if relative_query is None else with_zeros(relative_query, visibility.queries)


def _within_reach(call: Call, first: int, end: int) -> Call:
    """The call with the keys first .. end - 1."""
    if (first, end) == (0, call.key.shape[2]):
        return call
    explicit_mask = call.explicit_mask
    if explicit_mask is not None and explicit_mask.shape[3] != 1:
        explicit_mask = explicit_mask[..., first:end]
    return replace(
        call,
        key=call.key[:, :, first:end],
        value=call.value[:, :, first:end],
        offset=call.offset + first,
        part=call.part._replace(key=call.part.key + first),
        key_mask=None if call.key_mask is None else call.key_mask[:, first:end],
        key_segments=None if call.key_segments is None else call.key_segments[:, first:end],
        explicit_mask=explicit_mask,
        key_bias=None if call.key_bias is None else call.key_bias[..., first:end],
        axes=tuple(axis._replace(keys=axis.keys.part(slice(first, end))) for axis in call.axes),
    )
