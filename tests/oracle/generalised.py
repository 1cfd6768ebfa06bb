"""The Music Transformer's S_rel for full, causal and cross attention: S_rel[i, j] = q_i . E_{j-i}.

E holds the rows of offsets -(L-1), ..., L-1 (2L-1 rows), or -(L-1), ..., 0 (L rows) when causal. Offsets beyond it are
refused if visible ("error"), read the edge row ("clamp"), or score nothing ("zero", as in Tensor2Tensor).
"""

import numpy as np

from tests.oracle.equation import Answer, Ingredients, attend, dot_rows, rows
from tests.oracle.pairs import Pairs, refuse_beyond


def ingredients(query, key, pairs: Pairs, parameters, *, causal=False, beyond="error") -> Ingredients:
    """S_rel by its definition, row by row."""
    relative_embedding = parameters["relative_keys"]
    count = relative_embedding.shape[-2]
    max_length = count if causal else (count + 1) // 2
    first, last = -(max_length - 1), 0 if causal else max_length - 1
    if beyond == "error":
        refuse_beyond(pairs, first, last)
    nearest = np.minimum(np.maximum(pairs.offset, first), last)
    s_rel = dot_rows(query, rows(relative_embedding, nearest - first))
    if beyond == "zero":
        s_rel = np.where((nearest == pairs.offset)[:, None], s_rel, 0.0)
    return Ingredients(scaled=s_rel)


def attention(inputs, parameters, *, causal=False, beyond="error", **keywords) -> Answer:
    """(output, lse, weights) of softmax(scale (Q K^T + S_rel)) V."""
    return attend(
        inputs,
        lambda query, key, pairs: ingredients(query, key, pairs, parameters, causal=causal, beyond=beyond),
        **keywords,
    )
