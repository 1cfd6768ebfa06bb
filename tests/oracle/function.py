"""A bias that is a function of the offset: no paper's own, but the form of T5's, ALiBi's and all after them.

    S_ij = scale * q_i . k_j + f(j - i)_h           f(d) = W2 tanh(W1 d + b1) + b2

The f here is a small network: W1 = `function.first.weight` [E, 1], b1 = `function.first.bias` [E], W2 =
`function.last.weight` [H, E], b2 = `function.last.bias` [H], over d / 4.
"""

import numpy as np

from tests.oracle.equation import Answer, Ingredients, attend
from tests.oracle.pairs import Pairs


def ingredients(query, key, pairs: Pairs, parameters) -> Ingredients:
    """f of each pair's offset, never scaled."""

    def of(name: str) -> np.ndarray:
        return np.asarray(parameters[f"function.{name}"])

    # Every operand [..., n, Lq, Lk, features], the parameters with an extra leading axis where they have one.
    first, last = of("first.weight"), of("last.weight")
    hidden = np.tanh(
        pairs.offset[..., None] / 4.0 * first[..., None, None, None, :, 0] + of("first.bias")[..., None, None, None, :]
    )
    product = (hidden[..., None, :] * last[..., None, None, None, :, :]).sum(-1)
    return Ingredients(unscaled=np.moveaxis(product + of("last.bias")[..., None, None, None, :], -1, -3))


def attention(inputs, parameters, **keywords) -> Answer:
    """(output, lse, weights) under the function."""
    return attend(inputs, lambda query, key, pairs: ingredients(query, key, pairs, parameters), **keywords)
