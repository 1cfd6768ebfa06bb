"""Li et al. 2022, "MViTv2", eq. 4, as Kirillov et al. 2023, "Segment Anything", have it too, and the published codes.

    Attn(Q, K, V) = Softmax((Q K^T + E) / sqrt(d)) V,   E_ij = Q_i . R_p(i),p(j),   R = R^h + R^w (+ R^t)

In the codes E is not divided by sqrt(d): attn = (q * scale) @ k.T, and then += q . R of each axis. The row of a pair
is (query - key) + size - 1, so a table's rows fall from the key's most distant future on. Where a class token leads,
the codes add only to attn[1:, 1:].

parameters: one table per axis, "operands.N.encoding.table.relative_keys" [H or 1, 2 size - 1, D], rows ascending in
key - query, relattn's order: the codes' reversed.
"""

import numpy as np

from tests.oracle.equation import Ingredients, add_ingredients, dot_rows, rows, standing
from tests.oracle.pairs import Pairs


def ingredients(query, key, pairs: Pairs, parameters, *, axes=("y", "x")) -> Ingredients:
    """Q . R of every axis, unscaled."""
    each = []
    for number, axis in enumerate(axes):
        rel_pos = parameters[f"operands.{number}.encoding.table.relative_keys"][..., ::-1, :]
        size = (rel_pos.shape[-2] + 1) // 2
        there = pairs.axes[axis]
        relative = there.query_position[:, :, None] - there.key_position[:, None, :] + size - 1
        relative = np.where(there.visible, relative, 0)
        assert relative.min() >= 0 and relative.max() <= 2 * size - 2, f"the table of {axis} is too small"
        each.append(standing(Ingredients(unscaled=dot_rows(query, rows(rel_pos, relative))), there))
    return add_ingredients(each)
