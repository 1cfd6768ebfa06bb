"""Shaw, Uszkoreit, Vaswani 2018, "Self-Attention with Relative Position Representations", section 3.

    z_i  = sum_j alpha_ij (x_j W^V + a^V_ij)                              (3)
    e_ij = x_i W^Q (x_j W^K + a^K_ij)^T / sqrt(d_z)                       (4)
    a^K_ij = w^K_clip(j-i, k),  a^V_ij = w^V_clip(j-i, k),  clip(x, k) = max(-k, min(k, x))

generalised to w_{-left} .. w_{right}.
"""

import numpy as np

from tests.oracle.equation import Answer, Ingredients, attend, dot_rows, rows
from tests.oracle.pairs import Pairs


def clip(x, left: int, right: int) -> np.ndarray:
    """clip(x, k) = max(-k, min(k, x)), with its own k on either side."""
    return np.maximum(-left, np.minimum(right, x))


def ingredients(query, key, pairs: Pairs, parameters, *, max_distance) -> Ingredients:
    """x_i W^Q a^K_ij, and a^V_ij where there are relative values."""
    left, right = (max_distance, max_distance) if isinstance(max_distance, int) else max_distance
    j_minus_i = pairs.offset
    row = clip(j_minus_i, left, right) + left  # w = (w_-left, ..., w_right)
    w_key = parameters["relative_keys"]
    assert w_key.shape[-2] == left + 1 + right
    a_key = rows(w_key, row)
    a_value = rows(parameters["relative_values"], row) if "relative_values" in parameters else None
    return Ingredients(scaled=dot_rows(query, a_key), relative_values=a_value)


def attention(inputs, parameters, *, max_distance, **keywords) -> Answer:
    """(z, lse, alpha) of equations 3 and 4."""
    return attend(
        inputs,
        lambda query, key, pairs: ingredients(query, key, pairs, parameters, max_distance=max_distance),
        **keywords,
    )
