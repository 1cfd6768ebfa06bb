"""From offsets to diagonals and back: P[i, m], one number per query and offset, and S[i, j], one per query and key.

    S[i, j] = P[i, j - i + (Lq - 1)]

In memory, row after row, P is S with rows that are one longer. Dropping the first Lq - 1 numbers and reshaping shifts
every row by one more than the row above it. This is the step of Huang et al. 2018, section 3.4.1 (pad, reshape, slice)
for any Lq and Lk; P then needs a column for every offset, and one more at the end.
"""

from __future__ import annotations

from relattn.keras.installed import ops
from relattn.keras.tensors import Index, Tensor, pad_axis


def to_diagonals(products: Tensor, key_length: Index) -> Tensor:
    """S [..., Lq, Lk] from P [..., Lq, Lq + Lk]; the last column of P is not read."""
    *batch, query_length, width = ops.shape(products)
    flat = ops.reshape(products, (*batch, query_length * width))
    flat = flat[..., query_length - 1 : query_length * width - 1]
    return ops.reshape(flat, (*batch, query_length, width - 1))[..., :key_length]


def to_offsets(weights: Tensor) -> Tensor:
    """P [..., Lq, Lq + Lk] from S [..., Lq, Lk], zero where no pair has the offset: the transpose of `to_diagonals`."""
    *batch, query_length, key_length = ops.shape(weights)
    width = query_length + key_length
    kept = [(0, 0)] * len(batch)
    rows = ops.pad(weights, [*kept, (0, 0), (0, query_length - 1)])
    flat = ops.reshape(rows, (*batch, query_length * (width - 1)))
    flat = ops.pad(flat, [*kept, (query_length - 1, 1)])
    return ops.reshape(flat, (*batch, query_length, width))


def key_windows(key: Tensor, rows: Tensor, size: Index) -> tuple[Tensor, Tensor]:
    """Chunks of `size` keys, and the rows for each of them with the `size` queries of a block.

    key [B, H, Lk, D]; rows [heads or 1, (n + 1) * size, D] in descending offset, of keys filled up to n * size ->
    [B, H, n, size, D], the last chunk first, and [heads or 1, n, 2 * size, D]. A strip of all keys and all their rows
    would be quadratic in the keys.
    """
    batch, heads, key_length, width = ops.shape(key)
    count = -(-key_length // size)
    filled = pad_axis(key, 2, count * size - key_length)
    chunks = ops.flip(ops.reshape(filled, (batch, heads, count, size, width)), axis=2)
    pieces = ops.reshape(rows, (ops.shape(rows)[0], count + 1, size, width))
    return chunks, ops.concatenate([pieces[:, :-1], pieces[:, 1:]], axis=2)
