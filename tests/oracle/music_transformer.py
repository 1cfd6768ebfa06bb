"""Huang et al. 2018, "Music Transformer", sections 3.3 and 3.4.

    RelativeAttention = Softmax((Q K^T + S_rel) / sqrt(D_h)) V,      S_rel[i, j] = q_i . E_r,  r = j - i <= 0

E^r holds the rows of r = -(L-1), ..., 0, so E_r is row (L-1) + r. Causal only: above the diagonal S_rel is undefined.
"""

import numpy as np

from tests.oracle.equation import Answer, Ingredients, attend, dot_rows, rows
from tests.oracle.pairs import Pairs, refuse_beyond


def ingredients(query, key, pairs: Pairs, parameters) -> Ingredients:
    """S_rel by its definition; 0 where j > i, which causality hides."""
    relative_embedding = parameters["relative_keys"]
    length = relative_embedding.shape[-2]
    refuse_beyond(pairs, -(length - 1), 0)
    r = np.where(pairs.visible, pairs.offset, 0)
    s_rel = dot_rows(query, rows(relative_embedding, (length - 1) + r))
    return Ingredients(scaled=np.where(pairs.visible[:, None], s_rel, 0.0))


def skew(q_e) -> np.ndarray:
    """The paper's skewing procedure (section 3.4.1) on Q E^T [..., L, L]: pad a column on the left, reshape, slice.

    Below and on the diagonal it is S_rel; above, it holds what wrapped round from other rows.
    """
    length = q_e.shape[-1]
    padded = np.concatenate([np.zeros_like(q_e[..., :1]), q_e], axis=-1)
    reshaped = padded.reshape(*q_e.shape[:-2], length + 1, length)
    return reshaped[..., 1:, :]


def attention(inputs, parameters, **keywords) -> Answer:
    """(output, lse, weights) of the paper's equation 3; needs is_causal=True."""
    assert keywords.get("is_causal"), "the Music Transformer's relative attention is causal"
    return attend(inputs, lambda query, key, pairs: ingredients(query, key, pairs, parameters), **keywords)
