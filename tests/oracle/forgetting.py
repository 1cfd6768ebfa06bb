"""Lin, Nikishin, He, Courville 2025, "Forgetting Transformer: Softmax Attention with a Forget Gate", section 3.

    o_i = sum_j exp(q_i . k_j / sqrt(d) + d_ij) v_j / sum_j exp(q_i . k_j / sqrt(d) + d_ij),   j <= i
    d_ij = sum_{l = j + 1 .. i} log f_l,   f_l = sigmoid(x_l)

The gates' logits x [B, H, L] are computed of the tokens. The differences are added up here for every pair, not taken of
prefix sums.
"""

import numpy as np

from tests.oracle.equation import Answer, Ingredients, attend
from tests.oracle.pairs import Pairs


def decay(logits) -> np.ndarray:
    """d_ij [..., L, L], 0 for j > i."""
    log_gate = -np.log(1.0 + np.exp(-logits))
    length = logits.shape[-1]
    d = np.zeros((*logits.shape, length), dtype=log_gate.dtype)
    for i in range(length):
        for j in range(i - 1, -1, -1):
            d[..., i, j] = d[..., i, j + 1] + log_gate[..., j + 1]
    return d


def attention(inputs, parameters, **keywords) -> Answer:
    """(output, lse, weights) under the forget gates of `logits`, causal."""

    def ingredients(query, key, pairs: Pairs) -> Ingredients:
        return Ingredients(unscaled=decay(parameters["logits"]))

    return attend(inputs, ingredients, is_causal=True, **keywords)
