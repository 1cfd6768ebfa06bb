"""Arguments: a checked call, and the parts of it that must be the same on all ranks.

The ranks compare them, so that all raise the same sentence and none waits.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields, replace
from typing import Any, Literal
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn

from relattn.checks.dtensors import is_dtensor
from relattn.distributed.choose import Rotate
from relattn.distributed.group import Group
from relattn.distributed.lowering import Call, with_prepared_keys
from relattn.encodings.base import RelativeEncoding
from relattn.equation.tables import OffsetTable
from relattn.equation.terms import ScoreTerms
from relattn.errors import ShapeError

PRIME = 65521
"""The weights of a checksum's numbers count up to this number, so that another order of rows is noticed."""

_checked: WeakKeyDictionary[nn.Module, set[tuple[int, ...]]] = WeakKeyDictionary()
"""The encodings whose parameters were compared, and the ranks of the comparison."""


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


def agree(
    group: Group, lengths: Mapping[str, int], others: Mapping[str, object], error: Exception | None, number: int = 0
) -> list[int]:
    """The number of each rank, if everything else is the same on all ranks.

    lengths: the lengths that a rank holds, by name. others: anything else, by the name of its argument, compared as
    text. error: the error of this rank's arguments; None if there is none.

    All ranks of the group call it, and all raise or none.

    Raises RuntimeError: where another rank has an error; ShapeError, ValueError: where the lengths, or any others,
    differ. It also raises the error itself, if there is one.
    """
    checksums = [zlib.crc32(str(value).encode()) for value in others.values()]
    of_ranks = group.all_numbers([number, int(error is not None), *lengths.values(), *checksums])
    if error is not None:
        raise error
    refusing = [rank for rank, (_, refuses, *_) in enumerate(of_ranks) if refuses]
    if refusing:
        raise RuntimeError(
            f"relattn.distributed: rank {refusing[0]} of {group.world} refused its arguments, so that no rank goes on; "
            "see what it raised"
        )
    for place, name in enumerate((*lengths, *others), start=2):
        values = [numbers[place] for numbers in of_ranks]
        different = next((rank for rank, one in enumerate(values) if one != values[0]), None)
        if different is None:
            continue
        if name in lengths:
            raise ShapeError(
                f"{name}: got {values[0]} on rank 0 of {group.world} and {values[different]} on rank {different}; "
                "expected the same on all ranks; relattn.distributed.split makes such parts"
            )
        raise ValueError(
            f"{name}: got another on rank {different} of {group.world} than on rank 0; expected the same on all ranks"
        )
    return [brought for brought, *_ in of_ranks]


def checksum(group: Group, encoding: nn.Module | None) -> int:
    """A number that is the same for two encodings with the same parameters and buffers; 0 once the ranks have compared
    it.

    Call `compared` after the comparison.
    """
    if encoding is None or tuple(group.ranks) in _checked.get(encoding, set()):
        return 0
    total = 0
    for name, tensor in (*encoding.named_parameters(), *encoding.named_buffers()):
        total = zlib.crc32(f"{name} {tuple(tensor.shape)} {tensor.dtype} {_sum_of_bits(tensor)} {total}".encode())
    return total


def compared(group: Group, encoding: nn.Module | None) -> None:
    """Remember that the encoding's parameters are the same on all ranks. Training then keeps them the same."""
    if encoding is not None:
        _checked.setdefault(encoding, set()).add(tuple(group.ranks))


def _sum_of_bits(tensor: Tensor) -> int:
    """A sum of the tensor's bits as integers, weighted by their place. It does not depend on the order of summation."""
    own: Any = tensor.detach()
    if is_dtensor(own):  # heads that are split over other ranks: this one's part
        own = own.to_local()
    words = own.contiguous().flatten().view(torch.uint8)
    pad = -words.numel() % 4
    words = torch.nn.functional.pad(words, (0, pad)).view(torch.int32).to(torch.int64)
    weights = torch.arange(words.numel(), device=words.device) % PRIME + 1
    return int((words * weights).sum())
