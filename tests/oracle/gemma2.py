"""Gemma Team 2024, "Gemma 2: Improving Open Language Models at a Practical Size", section 2: logit soft-capping.

    logits <- soft_cap * tanh(logits / soft_cap)

of the scaled scores, before the mask; a window of the keys before each query in every other layer.
"""

import numpy as np

from tests.oracle.equation import Answer, dot, expand_groups, softmax_attention


def attention(inputs, parameters, *, soft_cap: float, scale: float, window: int) -> Answer:
    """(output, lse, weights) of capped scores, causal, over the last `window` keys."""
    assert not parameters
    query, key, value = inputs
    heads, length = query.shape[-3:-1]
    logits = scale * dot(query, expand_groups(key, heads))
    logits = soft_cap * np.tanh(logits / soft_cap)
    distance = np.arange(length)[:, None] - np.arange(length)
    return softmax_attention(logits, (distance >= 0) & (distance < window), expand_groups(value, heads))
