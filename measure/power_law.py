"""Power laws in the length: value = factor * L^exponent, least squares of the logarithms."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class PowerLaw:
    """value = factor * L^exponent."""

    factor: float
    exponent: float

    def value(self, length: int) -> float:
        """The value at a length."""
        return self.factor * length**self.exponent

    def length(self, value: float) -> float:
        """The length with this value; inf where values do not grow."""
        return (value / self.factor) ** (1.0 / self.exponent) if self.exponent > 0 else math.inf


def fit(points: Mapping[int, float]) -> PowerLaw | None:
    """The law by least squares of the logarithms; None for fewer than two lengths, or if a value is not positive."""
    if len(points) < 2 or min(points.values()) <= 0:
        return None
    exponent, logarithm = np.polyfit(np.log(list(points)), np.log(list(points.values())), 1)
    return PowerLaw(math.exp(logarithm), float(exponent))
