"""Scratch: the tile loop's buffers, made once per call and used again in every tile.

A product goes into a buffer of its own and is then added. Into a part of a tensor PyTorch multiplies one head at a
time.
"""

from __future__ import annotations

from math import prod

import torch
from torch import Tensor


class Scratch:
    """Named buffers of one dtype on one device. Taking a name again gives the same memory, with its old numbers."""

    def __init__(self, dtype: torch.dtype, device: torch.device):
        self.dtype, self.device = dtype, device
        self._buffers: dict[str, Tensor] = {}

    def take(self, name: str, *shape: int) -> Tensor:
        """A contiguous tensor of `shape`, with any numbers in it."""
        count = prod(shape)
        buffer = self._buffers.get(name)
        if buffer is None or buffer.numel() < count:
            self._buffers[name] = buffer = torch.empty(count, dtype=self.dtype, device=self.device)
        return buffer[:count].view(shape)
