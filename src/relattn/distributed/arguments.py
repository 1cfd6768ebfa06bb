"""Arguments: a checked call, and the parts of it that must be the same on all ranks."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from typing import Literal

import torch
from torch import Tensor

from relattn.distributed.choose import Rotate
from relattn.distributed.consensus import agree, checksum, compared
from relattn.distributed.group import Group
from relattn.distributed.lowering import Call, with_prepared_keys
from relattn.encodings.base import RelativeEncoding
from relattn.equation.tables import OffsetTable
from relattn.equation.terms import ScoreTerms


@dataclass(frozen=True)
class Arguments:
    """A checked call, how its parts travel, and the last steps for its answer."""

    call: Call
    rotate: Rotate | Literal["auto"]
    backend: str
    sinks: Tensor | None
    return_lse: bool

    def with_prepared_keys(self) -> Arguments:
        """The call with its keys as the encoding prepares them."""
        return replace(self, call=with_prepared_keys(self.call))


def agree_on_arguments(group: Group, check: Callable[[], Arguments], dropout_p: float) -> Arguments:
    """The call with the seed of rank 0, if all ranks have a call like it."""
    seed = int(torch.randint(2**63 - 1, ())) if dropout_p else None
    arguments = error = None
    try:
        arguments = check()
    except Exception as raised:  # the other ranks must get it
        error = raised
    if arguments is None:
        agree(group, dict.fromkeys(_LENGTHS, 0), dict.fromkeys(_OTHERS), error)
        raise AssertionError("agree raises an error that it is given")
    call, encoding = arguments.call, arguments.call.encoding
    module = encoding if isinstance(encoding, RelativeEncoding) else None
    lengths = (*call.query.shape, *call.key.shape[1:3], call.value.shape[3])
    others = (
        (checksum(group, module), _kind(encoding)), call.layout, arguments.rotate,
        call.query_positions.described(), call.key_positions.described(), call.within,
        call.key_mask is None, call.segments is None, None if call.key_bias is None else call.key_bias.shape[:2],
        call.attn_mask is None, None if arguments.sinks is None else arguments.sinks.dim(),
        call.options, call.query.dtype, arguments.backend, arguments.return_lse,
        _facts_of_gradients(call),
    )  # fmt: skip
    seeds = agree(
        group, dict(zip(_LENGTHS, lengths, strict=True)), dict(zip(_OTHERS, others, strict=True)), None, seed or 0
    )
    compared(group, module)
    return arguments if seed is None else replace(arguments, call=replace(call, seed=seeds[0]))


_LENGTHS = (
    "query's batch", "query's heads", "query", "query's width", "key's heads", "key", "value's width",
)  # fmt: skip
"""The lengths of a rank's part."""
_OTHERS = (
    "encoding", "layout", "rotate", "query_position", "key_position", "is_causal, window", "key_mask", "segment_ids",
    "key_bias", "attn_mask", "sinks", "softcap, dropout_p, scale", "query's dtype", "backend", "the function",
    "grad mode and what requires a gradient",
)  # fmt: skip
"""Other arguments that must be the same on all ranks, by name."""


def _kind(encoding: RelativeEncoding | ScoreTerms | None) -> object:
    """What an encoding is; for a caller's own terms, which of them exist. The messages depend on it."""
    if not isinstance(encoding, ScoreTerms):
        return type(encoding).__name__
    names = [field.name for field in fields(encoding)]
    present = [name for name in names if isinstance(getattr(encoding, name), (Tensor, OffsetTable))]
    return present, [(axes, _kind(part)) for axes, part in encoding.axes.items()]


def _facts_of_gradients(call: Call) -> tuple[bool, ...]:
    """The facts that decide on the messages of a backward pass: if one rank sends none, the others wait."""
    learns = isinstance(call.encoding, RelativeEncoding) and any(p.requires_grad for p in call.encoding.parameters())
    tensors = (call.query, call.key, call.value, call.key_bias)
    return torch.is_grad_enabled(), learns, *(one is not None and one.requires_grad for one in tensors)
