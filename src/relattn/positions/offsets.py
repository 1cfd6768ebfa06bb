"""The functions of an offset that the papers define, in NumPy: constants for callers and reference values for tests.

offset d = key position - query position (negative: the key lies in the past). Nothing here imports torch, so the tests
can compare both sides of the library, torch and Keras, with the same numbers.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from jaxtyping import Float64, Int64

from relattn.checks.values import check_base, check_buckets, check_size
from relattn.encodings.rope_scaling import BY_LENGTH, complete_scaling, scaled_frequencies


def t5_buckets(
    offsets: Int64[np.ndarray, "*n"], *, num_buckets: int = 32, max_distance: int = 128, bidirectional: bool = True
) -> Int64[np.ndarray, "*n"]:
    """bucket(d): one bucket per small distance, then buckets of logarithmic width; the last one holds all larger
    distances.

    With n = num_buckets, halved when bidirectional, for the upper half is then for keys in the future, and m = n // 2:
    bucket = |d| below m, else min(n - 1, m + floor(log(|d| / m) / log(max_distance / m) * (n - m))). When not
    bidirectional a key in the future falls into bucket 0.

    offsets: d, integers. num_buckets: even when bidirectional. max_distance: from there on all share the last bucket.
    bidirectional: whether keys in the future have buckets of their own.

    Raises TypeError: for offsets that are not integers, or a `bidirectional` that is not a bool; ValueError: for sizes
    that do not split evenly.

    Source: Raffel et al. 2020 (T5), section 2.1, as implemented in its published code. That computes in float32, and
    may differ by a bucket where float32 rounds a logarithm across a whole number. Here whole numbers decide
    (`log_edges`).
    """
    num_buckets, max_distance = check_buckets(num_buckets, max_distance, bidirectional)
    offsets = _integers("offsets", offsets)
    if bidirectional:
        num_buckets //= 2
        side = np.where(offsets > 0, num_buckets, 0)
        distance = np.abs(offsets)
    else:
        side = np.zeros_like(offsets)
        distance = np.maximum(-offsets, 0)
    exact = num_buckets // 2
    edges = log_edges(exact, max_distance, num_buckets - exact, num_buckets - exact - 1)
    return side + np.minimum(distance, exact) + np.searchsorted(edges, distance, side="right")


def log_edges(first: int, last: int, steps: int, count: int, *, strict: bool = False) -> Int64[np.ndarray, "count"]:
    """The smallest distances d with steps * log(d / first) / log(last / first) >= k, for k = 1 .. count.

    strict: > k in place of >= k, for k = 0 .. count - 1. T5 rounds the logarithm down, and counts the edges that a
    distance has reached. DeBERTa rounds it up, and counts those that it has passed.

    first, last: distances from 1 on, `last` above `first`. steps: the parts of equal ratio between them. count: how
        many distances to give. d^steps and first^(steps - k) * last^k decide, in whole numbers.
    """

    def is_there(distance: int, k: int) -> bool:
        power, bound = distance**steps * first ** max(k - steps, 0), first ** max(steps - k, 0) * last**k
        return power > bound if strict else power >= bound

    edges = []
    for k in range(count) if strict else range(1, count + 1):
        edge = round(first * (last / first) ** (k / steps))
        while is_there(edge, k):  # far out, float64 is off by more than 1
            edge -= 1
        while not is_there(edge, k):
            edge += 1
        edges.append(edge)
    return np.array(edges, dtype=np.int64)


def alibi_slopes(num_heads: int) -> Float64[np.ndarray, "num_heads"]:
    """slope_h = 2^(-8 h / n) for h = 1..n when n is a power of two.

    For another head count: the slopes of the next lower power of two m, then every other slope of 2m heads, starting
    with the first.

    num_heads: n.

    Raises ValueError: for a num_heads that is not an int of at least 1.

    Source: Press, Smith and Lewis 2022 (ALiBi), section 3 and the code it is published with.
    """
    num_heads = check_size("num_heads", num_heads)
    lower = 1 << (num_heads.bit_length() - 1)
    regular = 8.0 * np.arange(1, lower + 1) / lower
    between = 8.0 * np.arange(1, 2 * (num_heads - lower), 2) / (2 * lower)
    return 2.0 ** -np.concatenate([regular, between])


def inverse_frequencies(width: int, base: float = 10000.0) -> Float64[np.ndarray, "half"]:
    """base^(-2 i / width) for i = 0 .. width/2 - 1.

    width: the number of features, even. base: above 1.

    Raises ValueError: for a width that is odd or below 2, or a base that is not above 1.

    Source: Vaswani et al. 2017, section 3.5; Su et al. 2021, eq. 15.
    """
    width = check_size("width", width, least=2)
    if width % 2:
        raise ValueError(f"width: got {width}; expected an even int, a sine and a cosine for each frequency")
    return check_base(base) ** (-np.arange(0, width, 2, dtype=np.float64) / width)


def rope_frequencies(
    width: int, base: float = 10000.0, scaling: dict[str, Any] | None = None, length: int | None = None
) -> tuple[Float64[np.ndarray, "half"], float]:
    """The angle by which each of the width / 2 pairs turns a position, and the factor of cosine and sine.

    width, base: as in `inverse_frequencies`.
    scaling: as `RotaryEmbedding` takes it; with None, theta_t = base^(-2 t / width) and 1. With s its factor and L its
    original_max_position_embeddings:

        linear    theta_t / s
        dynamic   theta_t g^(-2 t / (width - 2)),  g = s max(length, L) / L - (s - 1): theta_t of a base that grows
        yarn      gamma_t theta_t + (1 - gamma_t) theta_t / s,  times 0.1 ln(s) + 1 or attention_factor
        longrope  theta_t / short_factor_t up to a length of L, theta_t / long_factor_t beyond,  times
                  sqrt(1 + ln(s) / ln(L)) or attention_factor
        llama3    as yarn, times 1

    gamma_t goes from 0 to 1 as r_t = L theta_t / (2 pi), the pair's rotations within L positions, goes from the lower
    to the upper limit (yarn: beta_slow, beta_fast; llama3: low_freq_factor, high_freq_factor). It is linear in r_t. For
    yarn's ramp "pairs" it is linear in t, between the two t where r_t equals the limits; truncate rounds these two
    outwards.

    length: the largest position of the call + 1, at least 0; only dynamic and longrope need it and read it.

    Raises ValueError: for a width that is odd or below 2, a base that is not above 1, a scaling that is not valid, or a
    missing length; TypeError: for a "truncate" that is not a bool.

    Sources: Chen et al. 2023; Peng et al. 2023 (YaRN), section 3.2 and 3.4, and the code it is published with, whose
    ramp is "pairs" (the paper's is "rotations"); Ding et al. 2024 (LongRoPE), and its published code; Llama 3.1's
    published code. dynamic: Hugging Face's transformers; in Peng et al. 2023, section 3.3, g is max(1, length / L).
    """
    theta, rule = inverse_frequencies(width, base), complete_scaling(scaling, width // 2)
    if rule is None:
        return theta, 1.0
    if rule["rope_type"] in BY_LENGTH and length is None:
        raise ValueError(
            f"length: got None; expected the largest position of the call + 1 for rope_type {rule['rope_type']!r}"
        )
    reached = 0 if length is None else check_size("length", length, least=0)
    reached = np.float64(max(reached, rule.get("original_max_position_embeddings", 0)))
    pairs = np.arange(width // 2, dtype=np.float64)
    return scaled_frequencies(theta, pairs, float(base), rule, reached, np.array), rule["attention_factor"]


def sinusoids(
    distances: Int64[np.ndarray, "n"], width: int, *, interleaved: bool = False
) -> Float64[np.ndarray, "n width"]:
    """R[p] = sines and cosines of p * 10000^(-2 i / width).

    distances: p, integers. width: the number of features, even.
    interleaved: False for all sines, then all cosines (Dai et al. 2019's code, RETURNN). True for sine and cosine of
        each frequency side by side (Vaswani et al. 2017; ESPnet).

    Raises TypeError: for distances that are not integers; ValueError: for a width that is odd or below 2.
    """
    angles = _integers("distances", distances).astype(np.float64)[:, None] * inverse_frequencies(width)
    if interleaved:
        return np.stack([np.sin(angles), np.cos(angles)], axis=-1).reshape(len(angles), width)
    return np.concatenate([np.sin(angles), np.cos(angles)], axis=-1)


def _integers(name: str, values: np.ndarray) -> Int64[np.ndarray, "*n"]:
    values = np.asarray(values)
    if not np.issubdtype(values.dtype, np.integer):
        raise TypeError(f"{name}: got {values.dtype}; expected integers")
    return values.astype(np.int64)
