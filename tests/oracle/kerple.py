"""Chi, Fan, Ramadge, Rudnicky 2022, "KERPLE: Kernelized Relative Positional Embedding for Length Extrapolation".

    logarithmic     a_mn = q_m . k_n / sqrt(d) - r1 log(1 + r2 |m - n|)      r1, r2 > 0
    power           a_mn = q_m . k_n / sqrt(d) - r1 |m - n|^r2               r1 > 0, 0 < r2 <= 2

r1 and r2 are learned, one of each for every head. The kernel is not multiplied by the scale of q . k. Its parameters
here lie within the bounds that the published code clamps them to (at least 0.01, a power at most 2).
"""

import numpy as np

from tests.oracle.equation import Answer, Ingredients, attend
from tests.oracle.pairs import Pairs


def kernel(distance: np.ndarray, r1, r2, kind: str) -> np.ndarray:
    """The conditionally positive definite kernel of |m - n|."""
    if kind == "log":
        return -r1 * np.log(1.0 + r2 * distance)
    assert kind == "power", kind
    apart = np.where(distance == 0, 1, distance).astype(np.float64)
    return -r1 * np.where(distance == 0, 0.0, apart**r2)


def ingredients(query, key, pairs: Pairs, parameters, *, kind="log") -> Ingredients:
    """The kernel of each pair, never scaled."""
    assert set(parameters) == {"r1", "r2"}
    r1, r2 = (np.asarray(parameters[name])[..., None, :, None, None] for name in ("r1", "r2"))
    largest = np.inf if kind == "log" else 2.0
    assert np.real(r1).min() >= 0.01, "below the bound of the published code"
    assert 0.01 <= np.real(r2).min() <= np.real(r2).max() <= largest, "outside the bounds of the published code"
    return Ingredients(unscaled=kernel(np.abs(pairs.offset)[:, None], r1, r2, kind))


def attention(inputs, parameters, *, kind="log", **keywords) -> Answer:
    """(output, lse, weights) under the kernel."""
    return attend(inputs, lambda query, key, pairs: ingredients(query, key, pairs, parameters, kind=kind), **keywords)
