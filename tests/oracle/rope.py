"""Su et al. 2021, "RoFormer: Enhanced Transformer with Rotary Position Embedding", section 3.2.

    f(x_m, m) = x_m e^{i m theta}                                              (13)
    <f(q, m), f(k, n)> = Re[q k* e^{i (m - n) theta}]                          (16)
    theta_t = base^(-2t/d), t = 0 .. d/2 - 1, one complex number for each pair of features (2t, 2t + 1)

The half layout (GPT-NeoX, LLaMA) pairs features (t, t + d/2) instead: the same rotation after a permutation of
features. With rotary_dim < head_dim only the first rotary_dim features turn, and d above is rotary_dim.

Longer texts, by a factor s. Linear scaling (Chen et al. 2023, position interpolation) turns by m / s. A rule replaces
theta_t instead:

Peng et al. 2023, "YaRN: Efficient Context Window Extension of Large Language Models", sections 3.2 and 3.4:
    lambda_t = 2 pi / theta_t,  r(t) = L / lambda_t
    gamma(r) = 0 if r < alpha, 1 if r > beta, else (r - alpha) / (beta - alpha)
    h(theta_t) = (1 - gamma(r(t))) theta_t / s + gamma(r(t)) theta_t
    softmax(q . k / (T sqrt(|D|))),   sqrt(1 / T) = 0.1 ln(s) + 1, which multiplies q and k
"yarn": that. "yarn_code": its published code, where gamma falls linearly in t from the t of r = beta to that of
r = alpha, found by r(t) = L b^(-2t/|D|) / (2 pi), the one rounded down and the other up ("yarn_code_exact": neither).

"dynamic": Hugging Face's transformers 5.23, `_compute_dynamic_ntk_parameters`. With l the length of the call, at
least L:
    theta_t of the base  b (s l / L - (s - 1))^(d / (d - 2))

"longrope": Ding et al. 2024, "LongRoPE", as in transformers' `_compute_longrope_parameters`: theta_t / lambda_t, with
one list of lambda for a length up to L and another beyond.

The length of a call is its largest position + 1: for keys of the keys' positions, for queries of both sides', over the
whole batch.

"llama3": Llama 3.1's published code. With the wavelength 2 pi / theta: below L / high_freq_factor theta stays, above
L / low_freq_factor it is theta / s, between them smooth = (L / wavelength - low) / (high - low) of it stays.
"""

import math
from typing import NamedTuple

import numpy as np

from tests.oracle.equation import Answer, Ingredients, attend, dot
from tests.oracle.pairs import Pairs


class Rule(NamedTuple):
    """How the frequencies change: the name above, L, (alpha, beta) or (low, high), sqrt(1 / T), and the two lambdas."""

    name: str
    length: float
    low: float = 0.0
    high: float = 0.0
    root: float = 1.0
    short: tuple[float, ...] = ()
    long: tuple[float, ...] = ()


def frequency(t: int, rotary_dim: int, base: float, s: float, rule: Rule, reached: int = 0) -> float:
    """h(theta_t) in a call of length `reached`."""
    theta = base ** (-2.0 * t / rotary_dim)
    wavelength = 2.0 * math.pi / theta
    length, low, high = rule.length, rule.low, rule.high
    if rule.name == "dynamic":
        if rotary_dim == 2:
            return theta  # theta_0 = 1 of any base
        larger = s * max(reached, length) / length - (s - 1.0)
        return (base * larger ** (rotary_dim / (rotary_dim - 2.0))) ** (-2.0 * t / rotary_dim)
    if rule.name == "longrope":
        return theta / (rule.long if reached > length else rule.short)[t]
    if rule.name == "llama3":
        if wavelength < length / high:
            return theta
        if wavelength > length / low:
            return theta / s
        smooth = (length / wavelength - low) / (high - low)
        return (1.0 - smooth) * theta / s + smooth * theta
    if rule.name == "yarn":
        r = length / wavelength
        gamma = 0.0 if r < low else 1.0 if r > high else (r - low) / (high - low)
    else:
        begin, end = (rotary_dim / 2.0 * math.log(length / (2.0 * math.pi * r), base) for r in (high, low))
        if rule.name == "yarn_code":
            begin, end = math.floor(begin), math.ceil(end)
        begin, end = max(begin, 0), min(end, rotary_dim - 1)
        gamma = 1.0 if t < begin else 0.0 if t > end else 1.0 - (t - begin) / (end - begin)
    return (1.0 - gamma) * theta / s + gamma * theta


def length_of(*positions) -> int:
    """The length of a call with these positions."""
    return 1 + max(int(np.max(each, initial=-1)) for each in positions)


def angles(
    position, rotary_dim: int, base: float, factor: float, rule: Rule | None = None, reached: int = 0
) -> np.ndarray:
    """m theta_t in a call of length `reached`: position [...] -> [..., rotary_dim / 2]."""
    if rule is None:
        t = np.arange(rotary_dim // 2)
        return np.asarray(position)[..., None] / factor * base ** (-2.0 * t / rotary_dim)
    theta = [frequency(t, rotary_dim, base, factor, rule, reached) for t in range(rotary_dim // 2)]
    return np.asarray(position)[..., None] * np.array(theta)


def interleaving_permutation(rotary_dim: int) -> np.ndarray:
    """Feature order (0, d/2, 1, d/2 + 1, ...) that brings the half layout's pairs side by side."""
    return np.arange(rotary_dim).reshape(2, -1).T.reshape(-1)


def _rotate_real(x, angle) -> np.ndarray:
    """Pairs of adjacent features as complex numbers times e^{i m theta}; real x."""
    turned = (x[..., 0::2] + 1j * x[..., 1::2]) * np.exp(1j * angle)
    return np.stack([turned.real, turned.imag], axis=-1).reshape(x.shape)


def rotate(
    x, position, reached=0, *, base=10000.0, rotary_dim=None, interleaved=False, factor=1.0, rule=None
) -> np.ndarray:
    """f(x_m, m), times sqrt(1 / T), for x [..., B, H, L, D] and position [n, L]."""
    width = x.shape[-1] if rotary_dim is None else rotary_dim
    angle = angles(position, width, base, factor, rule, reached)[:, None]  # [n, 1, L, width / 2]
    turning, still = x[..., :width], x[..., width:]
    order = np.arange(width) if interleaved else interleaving_permutation(width)
    turned = _rotate_real(turning[..., order].real, angle)
    if np.iscomplexobj(x):  # a rotation is linear: the perturbation in the imaginary part turns by itself
        turned = turned + 1j * _rotate_real(turning[..., order].imag, angle)
    root = 1.0 if rule is None else rule.root
    return np.concatenate([root * turned[..., np.argsort(order)], still], axis=-1)


def ingredients(query, key, pairs: Pairs, parameters, **settings) -> Ingredients:
    """<f(q_i, m), f(k_j, n)> in the place of q . k; settings as in rotate."""
    assert not parameters, "RoPE has no parameters"
    i, j = pairs.query_position, pairs.key_position
    return Ingredients(
        content=dot(rotate(query, i, length_of(i, j), **settings), rotate(key, j, length_of(j), **settings))
    )


def attention(
    inputs, parameters, *, base=10000.0, rotary_dim=None, interleaved=False, factor=1.0, rule=None, **keywords
) -> Answer:
    """(output, lse, weights) of attention over rotated queries and keys."""
    settings = {"base": base, "rotary_dim": rotary_dim, "interleaved": interleaved, "factor": factor, "rule": rule}
    return attend(inputs, lambda query, key, pairs: ingredients(query, key, pairs, parameters, **settings), **keywords)
