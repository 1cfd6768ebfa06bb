"""Liu et al. 2021, "Swin Transformer", eq. 4; Bao et al. 2022, "BEiT", and both published codes.

    Attention(Q, K, V) = SoftMax(Q K^T / sqrt(d) + B) V

B_ij is taken from a learned B^ of (2 M - 1) x (2 M - 1) rows, by the relative position of query i to key j along each
axis, which the codes count as query - key and move up by M - 1 so that it starts at 0. BEiT's table has three rows
more: from the class token to a patch, from a patch to the class token, and from the class token to itself.

Along any number of axes. The class token is the one that leads the grid; of a table without its rows it gets no bias.
"""

import numpy as np

from tests.oracle.equation import Ingredients, dot_rows, standing
from tests.oracle.pairs import Pairs


def relative_position_index(pairs: Pairs, sizes, axes) -> np.ndarray:
    """Which row of the table each pair reads, [n, Lq, Lk]; 0 where one of the two stands off the grid."""
    index = np.zeros((1, 1, 1), dtype=np.int64)
    for axis, size in zip(axes, sizes, strict=True):
        there = pairs if axis == "sequence" else pairs.axes[axis]
        relative = there.query_position[:, :, None] - there.key_position[:, None, :] + size - 1
        refused = there.visible & ((relative < 0) | (relative > 2 * size - 2))
        assert not refused.any(), f"the grid reaches further than the table on {axis}"
        index = index * (2 * size - 1) + np.clip(relative, 0, 2 * size - 2)
    return index


def ingredients(query, key, pairs: Pairs, parameters, *, sizes, axes=("y", "x"), extra=0) -> Ingredients:
    """B, never scaled."""
    table = parameters["bias"]  # [rows, H]
    index = relative_position_index(pairs, sizes, axes)
    of_a_grid = next(pairs.axes[axis] for axis in axes if axis != "sequence")
    if extra:
        rows = int(np.prod([2 * size - 1 for size in sizes]))
        queries, keys = (np.arange(n) < lead for n, lead in zip(index.shape[1:], of_a_grid.prefix_tokens, strict=True))
        index = np.where(queries[:, None] & ~keys, rows, index)
        index = np.where(~queries[:, None] & keys, rows + 1, index)
        index = np.where(queries[:, None] & keys, rows + 2, index)
    found = Ingredients(unscaled=np.moveaxis(np.take(table, index, axis=-2), -1, -3))
    return found if extra else standing(found, of_a_grid)


def embedding_ingredients(query, key, pairs: Pairs, parameters, *, sizes, axes=("y", "x")) -> Ingredients:
    """q_i . E[row] over the same rows: a key of its own for each relative position, scaled as q . k."""
    index = relative_position_index(pairs, sizes, axes)
    table = parameters["relative_keys"]  # [H or 1, rows, D]
    rows = np.swapaxes(np.take(table, index, axis=-2), -4, -5)
    found = Ingredients(scaled=dot_rows(query, rows))
    return standing(found, next(pairs.axes[axis] for axis in axes if axis != "sequence"))
