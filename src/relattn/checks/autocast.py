"""torch.autocast: what it does to the inputs of attention, and how the equation runs without it."""

from __future__ import annotations

import contextlib

import torch
from torch import Tensor

from relattn.interception import constant_in_graphs

_UNCHANGED = contextlib.nullcontext()

NARROWED = (torch.float32, torch.bfloat16, torch.float16)


def is_autocast(tensor: Tensor) -> bool:
    """Whether torch.autocast is on for the tensor's device."""
    device = tensor.device.type
    return (device in ("cpu", "cuda") or _knows_autocast(device)) and torch.is_autocast_enabled(device)


@constant_in_graphs
def _knows_autocast(device: str) -> bool:
    return torch.amp.is_autocast_available(device)


def narrowed(*tensors: Tensor) -> tuple[Tensor, ...]:
    """The inputs as torch.autocast casts those of scaled_dot_product_attention; the device of the first one counts."""
    if not isinstance(tensors[0], Tensor) or not is_autocast(tensors[0]):
        return tensors
    dtype = torch.get_autocast_dtype(tensors[0].device.type)
    return tuple(t.to(dtype) if isinstance(t, Tensor) and t.dtype in NARROWED else t for t in tensors)


def without_autocast(tensor: Tensor) -> contextlib.AbstractContextManager:
    """Turns autocast off inside: the equation's own dtypes hold (scores and sums in float32)."""
    return torch.autocast(tensor.device.type, enabled=False) if is_autocast(tensor) else _UNCHANGED
