"""Liu et al. 2022, "Swin Transformer V2", section 3.3, and its published code.

    B(dx, dy) = G(dx^, dy^)           d^ = sign(d) log(1 + |d|)

G is a network of two layers with a ReLU between them, the second without a bias. The code divides d, the relative
position query - key, by the largest one of the window that the weights were trained on, multiplies it by 8, takes the
logarithm to the base 2 and divides it by log2(8); the bias is 16 sigmoid(G).
"""

import numpy as np

from tests.oracle.equation import Ingredients, standing
from tests.oracle.pairs import Pairs


def ingredients(query, key, pairs: Pairs, parameters, *, sizes, axes=("y", "x")) -> Ingredients:
    """B, never scaled; sizes: of the window that the weights were trained on."""
    found, both = [], True
    for axis, size in zip(axes, sizes, strict=True):
        there = pairs if axis == "sequence" else pairs.axes[axis]
        relative = there.query_position[:, :, None] - there.key_position[:, None, :]
        both = both & (True if axis == "sequence" else there.visible)
        relative = 8.0 * np.where(there.visible, relative, 0) / max(size - 1, 1)
        found.append(np.sign(relative) * np.log2(np.abs(relative) + 1.0) / np.log2(8.0))
    coordinates = np.stack(np.broadcast_arrays(*found), axis=-1)  # [n, Lq, Lk, axes]
    first, bias, last = (parameters[f"function.mlp.{name}"] for name in ("0.weight", "0.bias", "2.weight"))
    hidden = np.einsum("nija,...ea->...nije", coordinates, first) + bias[..., None, None, None, :]
    hidden = np.where(np.real(hidden) > 0.0, hidden, 0.0)
    outcome = np.einsum("...nije,...he->...nhij", hidden, last)
    unscaled = 16.0 / (1.0 + np.exp(-outcome))
    return standing(Ingredients(unscaled=unscaled), next(pairs.axes[axis] for axis in axes if axis != "sequence"))
