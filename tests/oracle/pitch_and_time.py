"""Huang et al. 2018, "Music Transformer", section 3.4 and appendix: relative attention with relative pitch and time.

    RelativeAttention = Softmax((Q K^T + S_rel + S_rel(time) + S_rel(pitch)) / sqrt(D_h)) V

Each S_rel holds q_i . E of the distance between the two events: in the sequence, in time steps, in semitones. Every
head has embeddings of its own, a row for each distance from the most distant past to the farthest future.

parameters: "operands.0.relative_keys" of the sequence, "operands.1.encoding.relative_keys" of "time", and
"operands.2.encoding.relative_keys" of "pitch", [H, 2 L - 1, D].
"""

import numpy as np

from tests.oracle.equation import Ingredients
from tests.oracle.pairs import Pairs


def ingredients(query, key, pairs: Pairs, parameters) -> Ingredients:
    """The three S_rel by their definition; every pair's distance has a row."""
    s_rel = 0.0
    names = ("operands.0.relative_keys", "operands.1.encoding.relative_keys", "operands.2.encoding.relative_keys")
    for there, name in zip((pairs, pairs.axes["time"], pairs.axes["pitch"]), names, strict=True):
        embedding = parameters[name]
        length = (embedding.shape[-2] + 1) // 2
        row = there.offset + length - 1
        assert not (there.visible & ((row < 0) | (row > 2 * length - 2))).any(), f"{name} is too short"
        row = np.clip(row, 0, 2 * length - 2)
        products = query @ np.swapaxes(embedding, -1, -2)[..., None, :, :, :]  # every query with every row
        shape = np.broadcast_shapes((*row.shape[:1], 1, *row.shape[1:]), (*products.shape[:-1], row.shape[-1]))
        products = np.broadcast_to(products, (*shape[:-1], products.shape[-1]))
        s_rel = s_rel + np.take_along_axis(products, np.broadcast_to(row[:, None], shape), axis=-1)
    return Ingredients(scaled=s_rel)
