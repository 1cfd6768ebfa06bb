"""The functions of an offset that the papers define, in NumPy: constants for callers and truths for tests.

offset d = key position - query position (negative: the key lies in the past). Nothing here imports torch, so every face
of the library can be held to the same numbers.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from jaxtyping import Float64, Int64

from relattn.arguments import ROPE_LIMITS, check_base, check_buckets, check_size, complete_scaling


def t5_buckets(
    offsets: Int64[np.ndarray, "*n"], *, num_buckets: int = 32, max_distance: int = 128, bidirectional: bool = True
) -> Int64[np.ndarray, "*n"]:
    """bucket(d): one bucket per small distance, then buckets of logarithmic width, the last one for all beyond.

    With n = num_buckets, halved when bidirectional (the upper half then serves keys in the future), and m = n // 2:
    bucket = |d| below m, else min(n - 1, m + floor(log(|d| / m) / log(max_distance / m) * (n - m))). When not
    bidirectional a key in the future falls into bucket 0.

    Source: Raffel et al. 2020 (T5), section 2.1, as implemented in its published code, whose arithmetic is float32.
    """
    check_buckets(num_buckets, max_distance, bidirectional)
    offsets = _integers("offsets", offsets)
    if bidirectional:
        num_buckets //= 2
        side = np.where(offsets > 0, num_buckets, 0)
        distance = np.abs(offsets)
    else:
        side = np.zeros_like(offsets)
        distance = np.maximum(-offsets, 0)
    exact = num_buckets // 2
    ratio = np.log(np.maximum(distance, exact).astype(np.float32) / np.float32(exact)) / np.float32(
        math.log(max_distance / exact)
    )
    logarithmic = np.minimum(exact + (ratio * np.float32(num_buckets - exact)).astype(np.int64), num_buckets - 1)
    return side + np.where(distance < exact, distance, logarithmic)


def alibi_slopes(num_heads: int) -> Float64[np.ndarray, "num_heads"]:
    """slope_h = 2^(-8 h / n) for h = 1..n when n is a power of two.

    For another head count: the slopes of the next lower power of two m, then every other slope of 2m heads, from the
    first. Source: Press, Smith and Lewis 2022 (ALiBi), section 3 and the code it is published with.
    """
    check_size("num_heads", num_heads)
    lower = 1 << (num_heads.bit_length() - 1)
    regular = 8.0 * np.arange(1, lower + 1) / lower
    between = 8.0 * np.arange(1, 2 * (num_heads - lower), 2) / (2 * lower)
    return 2.0 ** -np.concatenate([regular, between])


def inverse_frequencies(width: int, base: float = 10000.0) -> Float64[np.ndarray, "half"]:
    """base^(-2 i / width) for i = 0 .. width/2 - 1; `width` is even.

    Source: Vaswani et al. 2017, section 3.5; Su et al. 2021, eq. 15.
    """
    check_size("width", width, least=2)
    if width % 2:
        raise ValueError(f"width: got {width}; expected an even int, a sine and a cosine for each frequency")
    check_base(base)
    return base ** (-np.arange(0, width, 2, dtype=np.float64) / width)


def rope_frequencies(
    width: int, base: float = 10000.0, scaling: dict[str, Any] | None = None
) -> tuple[Float64[np.ndarray, "half"], float]:
    """The angle by which each of the width / 2 pairs turns a position, and what cosine and sine are multiplied by.

    scaling: as `RotaryEmbedding` takes it; with None, theta_t = base^(-2 t / width) and 1. With s its factor and L its
    original_max_position_embeddings:

        linear   theta_t / s
        yarn     gamma_t theta_t + (1 - gamma_t) theta_t / s,  times 0.1 ln(s) + 1 or attention_factor
        llama3   the same, times 1

    gamma_t goes from 0 to 1 as r_t = L theta_t / (2 pi), the pair's rotations within L positions, goes from the lower
    to the upper limit (yarn: beta_slow, beta_fast; llama3: low_freq_factor, high_freq_factor). It is linear in r_t; but
    in t for yarn's ramp "pairs", between the t where r_t is one limit and the other, which truncate rounds outwards.

    Sources: Chen et al. 2023; Peng et al. 2023 (YaRN), section 3.2 and 3.4, and the code it is published with, whose
    ramp is "pairs" where the paper's is "rotations"; Llama 3.1's published code.
    """
    theta, rule = inverse_frequencies(width, base), complete_scaling(scaling)
    if rule is None:
        return theta, 1.0
    return scaled_frequencies(theta, np.arange(width // 2, dtype=np.float64), base, rule), rule["attention_factor"]


def scaled_frequencies(theta: Any, pairs: Any, base: float, rule: dict[str, Any]) -> Any:
    """`rope_frequencies` of the frequencies of pairs 0, 1, ...: float64 arrays of NumPy, or tensors, which come back.

    rule: as `complete_scaling` returns it.
    """
    interpolated = theta / rule["factor"]
    if rule["rope_type"] == "linear":
        return interpolated
    low, high = (rule[name] for name in ROPE_LIMITS[rule["rope_type"]])
    length = rule["original_max_position_embeddings"]
    if rule.get("ramp") == "pairs":
        gamma = 1.0 - _ramp(pairs, *_pairs_between(low, high, 2 * len(theta), base, length, rule["truncate"]))
    else:
        gamma = _ramp(length * theta / (2.0 * math.pi), low, high)
    return gamma * theta + (1.0 - gamma) * interpolated


def _ramp(values: Any, first: float, last: float) -> Any:
    """0 up to first, 1 from last on, linear between."""
    return ((values - first) / (last - first)).clip(0.0, 1.0)


def _pairs_between(
    low: float, high: float, width: int, base: float, length: float, truncate: bool
) -> tuple[float, float]:
    """The t at which r_t = high, and the t at which r_t = low, as YaRN's published code bounds them."""
    first, last = (
        width * math.log(length / (rotations * 2.0 * math.pi)) / (2.0 * math.log(base)) for rotations in (high, low)
    )
    if truncate:
        first, last = math.floor(first), math.ceil(last)
    first, last = max(first, 0.0), min(last, width - 1.0)
    return first, max(last, first + 0.001)  # a step, where the bounds leave no pair between


def sinusoids(
    distances: Int64[np.ndarray, "n"], width: int, *, interleaved: bool = False
) -> Float64[np.ndarray, "n width"]:
    """R[p] = sines and cosines of p * 10000^(-2 i / width).

    All sines then all cosines (Dai et al. 2019's code, RETURNN), or sine and cosine of each frequency side by side
    (Vaswani et al. 2017; ESPnet). `width` is even.
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
