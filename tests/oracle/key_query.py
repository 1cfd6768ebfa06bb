"""Huang, Liang, Xu and Xiang 2020, "Improve Transformer Models with Better Relative Position Embeddings", method 4.

    e_ij = ( (x_i W^Q) . (x_j W^K)  +  (x_i W^Q) . a_ij  +  (x_j W^K) . a_ij ) / sqrt(d_z)

a_ij: a learned vector for each j - i, here the rows of a table from the most distant past on.
"""

import numpy as np

from tests.oracle.equation import Answer, Ingredients, attend, dot_rows, rows
from tests.oracle.pairs import Pairs, refuse_beyond


def ingredients(query, key, pairs: Pairs, parameters) -> Ingredients:
    """The second and the third term."""
    table = parameters["relative_embeddings"]
    furthest = (table.shape[-2] - 1) // 2
    refuse_beyond(pairs, -furthest, furthest)
    a = rows(table, np.clip(pairs.offset, -furthest, furthest) + furthest)
    return Ingredients(scaled=dot_rows(query, a) + np.einsum("...hjd,...hijd->...hij", key, a))


def attention(inputs, parameters, **keywords) -> Answer:
    """(output, lse, weights) of softmax(scale (q_i . k_j + q_i . a_ij + k_j . a_ij)) V."""
    return attend(inputs, lambda query, key, pairs: ingredients(query, key, pairs, parameters), **keywords)
