"""Press, Smith, Lewis 2022, "Train Short, Test Long: Attention with Linear Biases", section 3, and its published code.

    softmax(q_i K^T + m . [-(i-1), ..., -2, -1, 0])

The bias is not multiplied by the scale of q . k. For n = 2^p heads the slopes are the geometric sequence that starts at
2^(-8/n) and has that value as its ratio. For other n, the authors take those of the largest power of two below n, then
every other slope (first, third, ...) of twice that power. Off the causal half the bias is -m |i - j|.

Slopes may be others: `given` ones, or the parameter `slopes`. signed: m (j - i), the list above continued past 0.
"""

import numpy as np

from tests.oracle.equation import Answer, Ingredients, attend
from tests.oracle.pairs import Pairs


def slopes(num_heads: int) -> np.ndarray:
    """m for each head [num_heads]."""
    power = 1
    while 2 * power <= num_heads:
        power *= 2
    sequence = [2.0 ** (-8.0 * head / power) for head in range(1, power + 1)]
    between = [2.0 ** (-8.0 * head / (2 * power)) for head in range(1, 2 * power + 1, 2)]
    return np.array(sequence + between[: num_heads - power])


def ingredients(query, key, pairs: Pairs, parameters, *, given=None, signed=False) -> Ingredients:
    """-m |i - j|, or m (j - i), never scaled."""
    assert set(parameters) <= {"slopes"}, "ALiBi has no other parameter"
    m = np.asarray(parameters.get("slopes", slopes(query.shape[-3]) if given is None else given))
    j_minus_i = pairs.offset[:, None]
    return Ingredients(unscaled=m[..., None, :, None, None] * (j_minus_i if signed else -np.abs(j_minus_i)))


def attention(inputs, parameters, *, given=None, signed=False, **keywords) -> Answer:
    """(output, lse, weights) under the linear biases."""
    settings = {"given": given, "signed": signed}
    return attend(inputs, lambda query, key, pairs: ingredients(query, key, pairs, parameters, **settings), **keywords)
