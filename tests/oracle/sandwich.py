"""Chi, Fan, Rudnicky, Ramadge 2023, "Dissecting Transformer Length Extrapolation via the Lens of Receptive Field
Analysis": Sandwich.

    a_mn = q_m . k_n / sqrt(d) + p_m . p_n / h          h = 8 n / H for head n = 1 .. H

p_m is the sinusoidal position of Vaswani et al. 2017, its own width wide (128 in the paper): sin(m / 10000^(2 i /
width)) and cos(m / 10000^(2 i / width)) for i = 0 .. width / 2 - 1. h is the head's compression ratio. The bias is not
multiplied by the scale of q . k.
"""

import numpy as np

from tests.oracle.equation import Answer, Ingredients, attend
from tests.oracle.pairs import Pairs


def sinusoid(position: np.ndarray, width: int) -> np.ndarray:
    """p of every position [..., width]: all sines, then all cosines."""
    angle = position[..., None] / 10000.0 ** (2.0 * np.arange(width // 2) / width)
    return np.concatenate([np.sin(angle), np.cos(angle)], axis=-1)


def bias(query_position: np.ndarray, key_position: np.ndarray, num_heads: int, width: int) -> np.ndarray:
    """p_m . p_n / h [n, H, Lq, Lk], by the inner products themselves."""
    products = sinusoid(query_position, width) @ np.swapaxes(sinusoid(key_position, width), -1, -2)
    ratios = 8.0 * np.arange(1, num_heads + 1) / num_heads
    return products[:, None] / ratios[:, None, None]


def ingredients(query, key, pairs: Pairs, parameters, *, width=128) -> Ingredients:
    """p_m . p_n / h, never scaled. Positions count from the first query's, for the digits of their angles."""
    assert not parameters, "Sandwich has no parameters"
    first = pairs.query_position[..., :1]
    positions = pairs.query_position - first, pairs.key_position - first
    return Ingredients(unscaled=bias(*positions, query.shape[-3], width))


def attention(inputs, parameters, *, width=128, **keywords) -> Answer:
    """(output, lse, weights) under the inner products of sinusoids."""
    return attend(inputs, lambda query, key, pairs: ingredients(query, key, pairs, parameters, width=width), **keywords)
