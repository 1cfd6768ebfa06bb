"""The frequencies that sinusoids and rotations share."""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
from jaxtyping import Float64
from torch import Tensor

from relattn.encodings.rope_scaling import scaled_frequencies


def inverse_frequencies(width: int, base: float, device: torch.device) -> Float64[Tensor, "half"]:
    """base^(-2 i / width) for i = 0 .. width/2 - 1, as in `offsets`, on the device in one operation."""
    last = -(width - 2) / width
    return torch.logspace(0.0, last, width // 2, base=base, dtype=torch.float64, device=device)


def rope_frequencies(
    width: int, base: float, rule: dict[str, Any] | None, length: Float64[Tensor, ""] | None, device: torch.device
) -> Float64[Tensor, "half"]:
    """The angle by which each pair turns a position, as in `offsets`.

    rule: a scaling from `complete_scaling`. length: the length of the call, for the rules that depend on it.
    """
    theta = inverse_frequencies(width, base, device)
    if rule is None:
        return theta
    pairs = torch.arange(width // 2, dtype=torch.float64, device=device)
    array = partial(torch.tensor, dtype=torch.float64, device=device)
    if length is not None:
        length = length.clamp(min=rule["original_max_position_embeddings"])
    return scaled_frequencies(theta, pairs, base, rule, length, array)
