"""Huang et al. 2022, "LayoutLMv3", and its published code: biases of the text's order and of the boxes' corners.

    attention_scores = q . k / sqrt(d) + (rel_pos + rel_2d_pos_x + rel_2d_pos_y) / sqrt(d)

Each term is a learned number per head and bucket of a relative position, key - query: of the position ids, of the
boxes' left edges, of their bottom edges. The buckets are T5's, in both directions.

parameters: "operands.N.bias", on axes "operands.N.encoding.bias", [num_buckets, H]; relattn's T5Bias is never scaled,
so they are the model's own weights divided by sqrt(d).
"""

import numpy as np

from tests.oracle.equation import Ingredients
from tests.oracle.pairs import Pairs
from tests.oracle.t5 import bucket_of


def ingredients(query, key, pairs: Pairs, parameters, *, max_distances) -> Ingredients:
    """The three biases. max_distances: of the sequence, of x and of y."""
    names = ("operands.0.bias", "operands.1.encoding.bias", "operands.2.encoding.bias")
    total = 0.0
    for there, name, furthest in zip((pairs, pairs.axes["x"], pairs.axes["y"]), names, max_distances, strict=True):
        weight = parameters[name]
        bucket = np.vectorize(bucket_of, otypes=[np.int64])(there.offset, weight.shape[-2], furthest, True)
        total = total + np.moveaxis(np.take(weight, bucket, axis=-2), -1, -3)
    return Ingredients(unscaled=total)
