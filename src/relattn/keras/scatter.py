"""Reading numbers by an index of rows, and its transpose: adding numbers up by it."""

from __future__ import annotations

from relattn.keras.installed import keras, ops
from relattn.keras.tensors import Tensor


def pick(products: Tensor, index: Tensor) -> Tensor:
    """S [B, H, L, M] from P [B, H, L, R]: S[..., m] = P[..., index[..., m]]; index [1 or B, 1, L, M]."""
    shape = (*ops.shape(products)[:3], ops.shape(index)[3])
    return ops.take_along_axis(products, ops.broadcast_to(index, shape), axis=-1)


def add_up(weights: Tensor, index: Tensor, num_rows: int) -> Tensor:
    """P [B, H, L, R] from S [B, H, L, M]: P[..., r] = sum of S[..., m] over the m with index[..., m] = r."""
    index = ops.broadcast_to(index, ops.shape(weights))
    if keras.backend.backend() == "torch":  # there keras.ops.segment_sum sums float64 in float32
        import torch

        shape = (*weights.shape[:3], num_rows)
        zeros = torch.zeros(shape, dtype=weights.dtype, device=weights.device)
        return zeros.scatter_add(-1, index.long(), weights)
    batch, heads, length, _ = ops.shape(weights)
    lines = batch * heads * length
    segments = ops.reshape(ops.arange(lines, dtype="int32"), (batch, heads, length, 1)) * num_rows + index
    sums = ops.segment_sum(ops.reshape(weights, (-1,)), ops.reshape(segments, (-1,)), lines * num_rows)
    return ops.reshape(sums, (batch, heads, length, num_rows))
