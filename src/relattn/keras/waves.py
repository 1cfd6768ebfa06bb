"""Cosines and sines of position times frequency, right to the last digits in float32 and without float64.

In float32 the product of a large position and a frequency leaves few digits for the angle, and JAX has no float64 by
default. So the product is computed in turns (1 turn = 2 pi) as whole numbers, and the whole turns are dropped exactly.
"""

from __future__ import annotations

import math

import numpy as np

from relattn.keras.installed import keras, ops
from relattn.keras.tensors import Tensor

_BASE = 4096  # the product of two digits of this base is less than 2^24, and a few of these products fit an int32


def cos_sin(positions: Tensor, frequencies: np.ndarray | Tensor, dtype: str) -> tuple[Tensor, Tensor]:
    """cos and sin of positions[:, None] * frequencies: int32 [n], float64 [F] -> two of dtype [n, F].

    frequencies: an array; under TensorFlow a float64 tensor, too.
    """
    if dtype == "float64":
        angles = ops.cast(positions, "float64")[:, None] * ops.convert_to_tensor(frequencies, dtype="float64")
        if keras.backend.backend() == "jax":  # there keras.ops.cos answers float64 with float32
            import jax

            return jax.numpy.cos(angles), jax.numpy.sin(angles)
    else:
        angles = _turns(positions, frequencies) * (2.0 * math.pi)
    return ops.cos(angles), ops.sin(angles)


def _turns(positions: Tensor, frequencies: np.ndarray | Tensor) -> Tensor:
    """positions * frequencies / (2 pi) without its whole turns: float32 in [-1/2, 1/2).

    With digits p_k of a position (p = sum p_k 4096^k) and d_m of a frequency (f = sum d_m 4096^-m turns), p_k d_m is
    worth 4096^(k - m): whole turns for m <= k.
    """
    fraction = frequencies / (2.0 * math.pi) % 1.0
    digits = []
    for _ in range(6):
        fraction = fraction * _BASE
        whole = fraction // 1.0
        digits.append(ops.cast(whole, "int32"))
        fraction = fraction - whole
    high = ops.floor_divide(positions, _BASE)
    places = [ops.mod(positions, _BASE), ops.mod(high, _BASE), ops.floor_divide(high, _BASE)]

    def worth(m: int) -> Tensor:
        """The sum of the products that are worth 4096^-m each, an int32."""
        return sum(place[:, None] * digits[k + m - 1] for k, place in enumerate(places))

    coarse = ops.mod(ops.mod(worth(1), _BASE) * _BASE + worth(2) + _BASE**2 // 2, _BASE**2) - _BASE**2 // 2
    fine = ops.cast(worth(3), "float32") * float(_BASE) ** -3 + ops.cast(worth(4), "float32") * float(_BASE) ** -4
    return ops.cast(coarse, "float32") * float(_BASE) ** -2 + fine
