"""Queries, keys and values as most models make them: one projection each, head by head."""

from __future__ import annotations

from collections.abc import Iterable

from jaxtyping import Float
from torch import Tensor, nn


def projected(
    hidden_states: Float[Tensor, "B L width"], projections: Iterable[nn.Module], head_dim: int
) -> list[Float[Tensor, "B H L D"]]:
    """The result of each projection, head by head."""
    return [projection(hidden_states).unflatten(-1, (-1, head_dim)).transpose(1, 2) for projection in projections]
