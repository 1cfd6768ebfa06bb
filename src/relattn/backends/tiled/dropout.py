"""Dropout of a tile's weights, drawn again tile by tile in the backward pass."""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor

from relattn.backends.tiled.scratch import Scratch


class Dropout:
    """The factors 0 or 1/(1-p) of one tile after the other; the same again from the same seed, in the same order."""

    def __init__(self, probability: float, seed: Tensor | None, scratch: Scratch):
        self.kept = 1.0 - probability
        self.scratch = scratch
        self.generator = None
        if seed is not None:
            self.generator = torch.Generator(scratch.device).manual_seed(int(seed))

    def factors(self, scores: Float[Tensor, "H n m"]) -> Float[Tensor, "H n m"] | None:
        """What the next tile's weights are multiplied with; None without dropout."""
        if self.generator is None:
            return None
        factors = self.scratch.take("dropout", *scores.shape).bernoulli_(self.kept, generator=self.generator)
        return factors.mul_(1.0 / self.kept) if self.kept > 0.0 else factors
