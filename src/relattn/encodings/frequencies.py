"""The frequencies that sinusoids and rotations share."""

from __future__ import annotations

import torch
from jaxtyping import Float64
from torch import Tensor


def inverse_frequencies(width: int, base: float, device: torch.device) -> Float64[Tensor, "half"]:
    """base^(-2 i / width) for i = 0 .. width/2 - 1, as in `offsets`, on the device in one operation."""
    last = -(width - 2) / width
    return torch.logspace(0.0, last, width // 2, base=base, dtype=torch.float64, device=device)
