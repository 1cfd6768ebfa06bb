"""How large a kernel's tiles are, and how many warps and stages compute one: the largest that a device has room for.

Sizes are not searched for by timing: a sum's order, and so a gradient's last bits, would change from run to run.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor
from triton.runtime.errors import OutOfResources

from relattn.backends.triton.bands import INTERPRETED
from relattn.backends.triton.call import Call

Sizes = tuple[int, int, int]  # tile, warps, stages
HALF: tuple[Sizes, ...] = ((64, 8, 2), (64, 8, 1), (32, 4, 2), (32, 4, 1), (16, 4, 1))
SINGLE: tuple[Sizes, ...] = ((32, 8, 1), (16, 4, 1))
SMALLEST: tuple[Sizes, ...] = ((16, 4, 1),)

_fits: dict[tuple, Sizes] = {}


def launch(kernel: Any, call: Call, programs: Callable[[int], int], arguments: tuple) -> None:
    """Run the kernel in the largest tiles whose data the device's shared memory holds; programs: how many, by tile."""
    relative = call.query if call.relative_query is None else call.relative_query
    widths = {"D": call.query.shape[3], "DV": call.value.shape[3], "DR": relative.shape[3]}
    key = (kernel, call.query.device, *widths.values(), *_kinds(arguments))
    candidates = (_fits[key],) if key in _fits else _candidates(call)
    for tile, warps, stages in candidates:
        options = {"num_warps": warps, "num_stages": stages}
        try:
            kernel[(programs(tile),)](*arguments, **widths, TILE=tile, **options)
        except OutOfResources:
            if (tile, warps, stages) == candidates[-1]:
                raise
        else:
            _fits[key] = tile, warps, stages
            return


def _candidates(call: Call) -> tuple[Sizes, ...]:
    if INTERPRETED:
        return SMALLEST
    return SINGLE if call.query.dtype == torch.float32 else HALF


def _kinds(arguments: tuple) -> Iterator[Any]:
    """What a kernel is compiled for: which arguments are there, and their dtypes."""
    for argument in arguments:
        if isinstance(argument, tuple):
            yield from _kinds(argument)
        else:
            yield argument.dtype if isinstance(argument, Tensor) else argument is None
