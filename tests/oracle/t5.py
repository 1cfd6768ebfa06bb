"""Raffel et al. 2020, "Exploring the Limits of Transfer Learning ...", section 2.1, and its published bucket function.

    S_ij = q_i . k_j + bias[bucket(j - i)]         (T5 models do not scale q . k: scale=1)

Half of the buckets hold exact distances; the others grow logarithmically up to max_distance, beyond which the last one
holds. With n = |distance|, E exact buckets and N logarithmic ones the bucket is

    E + floor(N * log(n / E) / log(max_distance / E))

whose floor is decided here in whole numbers: it reaches k where (n / E)^N >= (max_distance / E)^k.
"""

import numpy as np

from tests.oracle.equation import Answer, Ingredients, attend
from tests.oracle.pairs import Pairs


def bucket_of(relative_position: int, num_buckets: int, max_distance: int, bidirectional: bool) -> int:
    """The bucket of one relative position (memory position - query position)."""
    base = 0
    if bidirectional:
        num_buckets //= 2
        base = num_buckets if relative_position > 0 else 0
        n = abs(relative_position)
    else:
        n = max(-relative_position, 0)
    exact = num_buckets // 2
    if n < exact:
        return base + n
    logarithmic = num_buckets - exact
    step = 0
    while (
        step + 1 < logarithmic
        and n**logarithmic * exact ** (step + 1) >= max_distance ** (step + 1) * exact**logarithmic
    ):
        step += 1
    return base + exact + step


def relative_position_bucket(relative_position, num_buckets=32, max_distance=128, bidirectional=True) -> np.ndarray:
    """The bucket of every relative position (int array of any shape)."""
    distinct, place = np.unique(relative_position, return_inverse=True)
    buckets = [bucket_of(int(one), num_buckets, max_distance, bidirectional) for one in distinct]
    return np.array(buckets, dtype=np.int64)[place].reshape(np.shape(relative_position))


def ingredients(query, key, pairs: Pairs, parameters, *, max_distance=128, bidirectional=True) -> Ingredients:
    """bias[bucket(j - i)], never scaled."""
    bias = parameters["bias"]  # [num_buckets, H]
    bucket = relative_position_bucket(pairs.offset, bias.shape[-2], max_distance, bidirectional)
    per_pair = np.take(bias, bucket, axis=-2)  # [..., n, Lq, Lk, H]
    return Ingredients(unscaled=np.moveaxis(per_pair, -1, -3))


def attention(inputs, parameters, *, max_distance=128, bidirectional=True, **keywords) -> Answer:
    """(output, lse, weights) under the bucketed bias; pass scale=1 for what T5 computes."""
    return attend(
        inputs,
        lambda query, key, pairs: ingredients(
            query, key, pairs, parameters, max_distance=max_distance, bidirectional=bidirectional
        ),
        **keywords,
    )
