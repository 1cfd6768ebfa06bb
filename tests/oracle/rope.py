"""Su et al. 2021, "RoFormer: Enhanced Transformer with Rotary Position Embedding", section 3.2.

    f(x_m, m) = x_m e^{i m theta}                                              (13)
    <f(q, m), f(k, n)> = Re[q k* e^{i (m - n) theta}]                          (16)
    theta_t = base^(-2t/d), t = 0 .. d/2 - 1, one complex number for each pair of features (2t, 2t + 1)

The half layout (GPT-NeoX, LLaMA) pairs features (t, t + d/2) instead: the same rotation after a permutation of
features. With rotary_dim < head_dim only the first rotary_dim features turn, and d above is rotary_dim. Linear
scaling (Chen et al. 2023, position interpolation) turns by m / factor.
"""

import numpy as np

from tests.oracle.equation import Answer, Ingredients, attend, dot
from tests.oracle.pairs import Pairs


def angles(position, rotary_dim: int, base: float, factor: float) -> np.ndarray:
    """m theta_t: position [...] -> [..., rotary_dim / 2]."""
    t = np.arange(rotary_dim // 2)
    return np.asarray(position)[..., None] / factor * base ** (-2.0 * t / rotary_dim)


def interleaving_permutation(rotary_dim: int) -> np.ndarray:
    """Feature order (0, d/2, 1, d/2 + 1, ...) that brings the half layout's pairs side by side."""
    return np.arange(rotary_dim).reshape(2, -1).T.reshape(-1)


def _rotate_real(x, angle) -> np.ndarray:
    """Pairs of adjacent features as complex numbers times e^{i m theta}; real x."""
    turned = (x[..., 0::2] + 1j * x[..., 1::2]) * np.exp(1j * angle)
    return np.stack([turned.real, turned.imag], axis=-1).reshape(x.shape)


def rotate(x, position, *, base=10000.0, rotary_dim=None, interleaved=False, factor=1.0) -> np.ndarray:
    """f(x_m, m) for x [..., B, H, L, D] and position [n, L]."""
    width = x.shape[-1] if rotary_dim is None else rotary_dim
    angle = angles(position, width, base, factor)[:, None]  # [n, 1, L, width / 2]
    turning, still = x[..., :width], x[..., width:]
    order = np.arange(width) if interleaved else interleaving_permutation(width)
    turned = _rotate_real(turning[..., order].real, angle)
    if np.iscomplexobj(x):  # a rotation is linear: the perturbation in the imaginary part turns by itself
        turned = turned + 1j * _rotate_real(turning[..., order].imag, angle)
    return np.concatenate([turned[..., np.argsort(order)], still], axis=-1)


def ingredients(query, key, pairs: Pairs, parameters, **settings) -> Ingredients:
    """<f(q_i, m), f(k_j, n)> in the place of q . k; settings as in rotate."""
    assert not parameters, "RoPE has no parameters"
    return Ingredients(
        content=dot(rotate(query, pairs.query_position, **settings), rotate(key, pairs.key_position, **settings))
    )


def attention(
    inputs, parameters, *, base=10000.0, rotary_dim=None, interleaved=False, factor=1.0, **keywords
) -> Answer:
    """(output, lse, weights) of attention over rotated queries and keys."""
    settings = {"base": base, "rotary_dim": rotary_dim, "interleaved": interleaved, "factor": factor}
    return attend(inputs, lambda query, key, pairs: ingredients(query, key, pairs, parameters, **settings), **keywords)
