"""Attention sinks: OpenAI 2025, "gpt-oss-120b & gpt-oss-20b Model Card", section 2.3, and its published code.

    QK = cat([QK, S], dim=-1);   W = softmax(QK);   W = W[..., :-1];   O = W V

S is a learned number per head. In Inkling 2 it is one per token and head, projected of the token.
"""

import numpy as np

from tests.oracle.equation import Answer, dot, expand_groups


def attention(inputs, parameters) -> Answer:
    """(output, lse, weights), causal; S: `sinks` [H], or [B, H, L]. lse is that of the keys alone."""
    query, key, value = inputs
    heads, length = query.shape[-3:-1]
    logits = dot(query, expand_groups(key, heads)) / np.sqrt(query.shape[-1])
    hidden = np.arange(length)[:, None] < np.arange(length)
    logits = np.where(hidden, -1e30, logits)
    sinks = parameters["sinks"]
    sinks = sinks[..., None, :, None] if sinks.ndim <= 2 else sinks  # one leading axis of perturbations at most
    shape = np.broadcast_shapes(sinks.shape, logits.shape[:-1])
    logits, sinks = np.broadcast_to(logits, (*shape, length)), np.broadcast_to(sinks, shape)
    exponentials = np.exp(np.concatenate([logits, sinks[..., None]], axis=-1))
    weights = (exponentials / exponentials.sum(-1, keepdims=True))[..., :-1]
    return Answer(weights @ expand_groups(value, heads), np.log(exponentials[..., :-1].sum(-1)), weights)
