"""Consensus: the ranks compare their arguments, so that all raise the same sentence and none waits."""

from __future__ import annotations

import zlib
from collections.abc import Mapping
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn

from relattn.checks.dtensors import is_dtensor
from relattn.distributed.group import Group
from relattn.errors import ShapeError

PRIME = 65521
"""The weights of a checksum's numbers count up to this number, so that another order of rows is noticed."""

_checked: WeakKeyDictionary[nn.Module, set[tuple[int, ...]]] = WeakKeyDictionary()
"""The encodings whose parameters were compared, and the ranks of the comparison."""


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
