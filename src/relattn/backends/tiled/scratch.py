"""Scratch: the tile loop's buffers, made once a call and used again in every tile."""

from __future__ import annotations

from math import prod

import torch
from torch import Tensor


class Scratch:
    """Named buffers of one dtype on one device; taking a name again hands out the same memory, whatever it holds."""

    def __init__(self, dtype: torch.dtype, device: torch.device):
        self.dtype, self.device = dtype, device
        self._buffers: dict[str, Tensor] = {}

    def take(self, name: str, *shape: int) -> Tensor:
        """A contiguous tensor of `shape`, with anything in it."""
        count = prod(shape)
        buffer = self._buffers.get(name)
        if buffer is None or buffer.numel() < count:
            self._buffers[name] = buffer = torch.empty(count, dtype=self.dtype, device=self.device)
        return buffer[:count].view(shape)
