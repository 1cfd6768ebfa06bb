"""He et al. 2021, "DeBERTa", section 3.1, and the index and buckets of its published code.

    A~_ij = Q^c_i K^c_j^T  +  Q^c_i K^r_delta(i,j)^T  +  K^c_j Q^r_delta(j,i)^T          (4), scaled by 1 / sqrt(3 d)
    delta(i, j) = 0 for i - j <= -k;  2k - 1 for i - j >= k;  i - j + k otherwise         (3)

K^r = P W_k,r and Q^r = P W_q,r. The published code reads the row delta(i, j) in the third term as well, where (4) has
delta(j, i); models were trained so, and so it is here. DeBERTa-v2 puts i - j into a bucket before: with k rows a
side and m = k / 2, a distance n up to m keeps its own, one beyond has the bucket

    m + ceil((m - 1) * log(n / m) / log((M - 1) / m))          M: max_distance

whose ceiling is decided here in whole numbers: it is at most c where (n / m)^(m - 1) <= ((M - 1) / m)^c.
"""

import numpy as np

from tests.oracle.equation import Answer, Ingredients, attend, dot_rows, rows
from tests.oracle.pairs import Pairs


def bucket_of(relative_position: int, k: int, max_distance: int) -> int:
    """The bucket of one i - j; a distance from max_distance on leaves the rows, and delta clips it."""
    m, n = k // 2, abs(relative_position)
    if n <= m:
        return relative_position
    c = 0
    while c <= m and n ** (m - 1) * m**c > (max_distance - 1) ** c * m ** (m - 1):
        c += 1
    return int(np.sign(relative_position)) * (m + c)


def delta(relative_position, k: int, max_distance: int | None) -> np.ndarray:
    """Equation 3 of every i - j (int array of any shape); max_distance None: without buckets."""
    distinct, place = np.unique(relative_position, return_inverse=True)
    if max_distance is not None:
        distinct = np.array([bucket_of(int(one), k, max_distance) for one in distinct])
    return np.clip(distinct + k, 0, 2 * k - 1)[place].reshape(np.shape(relative_position))


def projected(parameters, name: str, num_heads: int) -> np.ndarray:
    """P W + its bias, per head: [..., H, 2k, D]."""
    p, w, bias = parameters["relative_embeddings"], parameters[f"{name}.weight"], parameters[f"{name}.bias"]
    flat = p @ np.swapaxes(w, -1, -2) + bias[..., None, :]
    return np.swapaxes(flat.reshape(*flat.shape[:-1], num_heads, -1), -2, -3)


def ingredients(query, key, pairs: Pairs, parameters, *, max_distance=None) -> Ingredients:
    """The second and the third term of equation 4; max_distance: with DeBERTa-v2's buckets."""
    k = parameters["relative_embeddings"].shape[-2] // 2
    index = delta(-pairs.offset, k, max_distance)
    terms = []
    if "pos_key_proj.weight" in parameters:
        k_r = rows(projected(parameters, "pos_key_proj", query.shape[-3]), index)
        terms.append(dot_rows(query, k_r))
    if "pos_query_proj.weight" in parameters:
        q_r = rows(projected(parameters, "pos_query_proj", query.shape[-3]), index)
        terms.append(np.einsum("...hjd,...hijd->...hij", key, q_r))
    return Ingredients(scaled=sum(terms[1:], start=terms[0]))


def attention(inputs, parameters, *, max_distance=None, **keywords) -> Answer:
    """(output, lse, weights) of softmax(scale A~) V; pass scale = 1 / sqrt(3 d) for what DeBERTa computes."""
    return attend(
        inputs,
        lambda query, key, pairs: ingredients(query, key, pairs, parameters, max_distance=max_distance),
        **keywords,
    )
