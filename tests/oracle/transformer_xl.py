"""Dai et al. 2019, "Transformer-XL", section 3.3.

    A^rel_ij =  q_i^T k_j            (a)  content
             +  q_i^T W_kR R_{i-j}   (b)  content-dependent position
             +  u^T k_j              (c)  global content bias
             +  v^T W_kR R_{i-j}     (d)  global position bias

R is the sinusoid of the *distance* i - j (query minus key), not learned. The authors' code lays it out as all sines,
then all cosines; ESPnet and Wav2Vec2-Conformer interleave them. All four terms are scaled alike. Bidirectional users
(ESPnet) take negative distances too. A learned table in the place of W_kR R is read at the offset j - i.
"""

import numpy as np

from tests.oracle.equation import Answer, Ingredients, attend, dot, dot_rows, rows
from tests.oracle.pairs import Pairs, refuse_beyond


def sinusoid(distance, width: int, interleaved: bool) -> np.ndarray:
    """R_distance: frequencies 10000^(-2k/width), k = 0 .. width/2 - 1; distance [...] -> [..., width]."""
    k = np.arange(width // 2)
    angle = np.asarray(distance, dtype=np.float64)[..., None] * 10000.0 ** (-2.0 * k / width)
    if interleaved:
        return np.stack([np.sin(angle), np.cos(angle)], axis=-1).reshape(*angle.shape[:-1], width)
    return np.concatenate([np.sin(angle), np.cos(angle)], axis=-1)


def projected_distances(pairs: Pairs, w_kr, num_heads: int, interleaved: bool) -> np.ndarray:
    """W_kR R_{i-j} for every pair: [..., n, H, Lq, Lk, D] from w_kr [..., H*D, E]."""
    width = w_kr.shape[-1]
    per_head = w_kr.reshape(*w_kr.shape[:-2], 1, num_heads, -1, width)  # [..., 1, H, D, E]
    r = sinusoid(-pairs.offset, width, interleaved)  # i - j
    return np.einsum("...hde,...ije->...hijd", per_head, r)


def ingredients(query, key, pairs: Pairs, parameters, *, interleaved=False) -> Ingredients:
    """Terms (b), (c) and (d); (a) is q . k."""
    if "relative_keys" in parameters:
        table = parameters["relative_keys"]
        max_length = (table.shape[-2] + 1) // 2
        refuse_beyond(pairs, -(max_length - 1), max_length - 1)
        index = np.where(pairs.visible, pairs.offset, 0) + max_length - 1
        w_r = rows(table, index)
    else:
        w_r = projected_distances(pairs, parameters["linear_pos.weight"], query.shape[-3], interleaved)
    u = parameters["pos_bias_u"][..., None, :, None, :]  # [..., 1, H, 1, D]
    v = parameters["pos_bias_v"][..., None, :, None, :]
    b = dot_rows(query, w_r)
    c = dot(u, key)
    d = dot_rows(np.broadcast_to(v, (*v.shape[:-2], query.shape[-2], v.shape[-1])), w_r)
    return Ingredients(scaled=b + c + d)


def attention(inputs, parameters, *, interleaved=False, **keywords) -> Answer:
    """(output, lse, weights) of softmax(scale A^rel) V."""
    return attend(
        inputs,
        lambda query, key, pairs: ingredients(query, key, pairs, parameters, interleaved=interleaved),
        **keywords,
    )
