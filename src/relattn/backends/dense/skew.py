"""The diagonals of a matrix of scores read from a strip, and written back to it.

Column m of a strip belongs to diagonal m = j - i + (Lq - 1) of the scores: column 0 to the last query with the first
key. A strip may end early: then pairs beyond it hold finite values without a meaning, and the caller's mask must hide
them.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor


def strided_view(strip: Float[Tensor, "*n Lq W"], key_length: int) -> Float[Tensor, "*n Lq Lk"]:
    """S[i, j] = strip[i, j - i + (Lq - 1)], the same memory: (i, j) lies (Lq - 1) + i * (W - 1) + j from the start.

    With W > Lk the view's rows do not overlap, so that its gradient is a plain copy. Without a gradient, and for a
    single row, Lk is enough: the last pair of a row is then the first pair of the next.
    """
    query_length, width = strip.shape[-2:]
    if torch.compiler.is_compiling():  # it cannot trace a storage offset, and would fix open lengths that it compares
        numbers = strip.flatten(-2).narrow(-1, query_length - 1, query_length * (width - 1))
        return numbers.unflatten(-1, (query_length, width - 1)).narrow(-1, 0, key_length)
    apart = torch.is_grad_enabled() and strip.requires_grad
    needed = key_length + 1 if query_length > 1 and apart else key_length
    if width < needed:
        raise ValueError(f"strided_view: got {width} rows for {key_length} keys; expected at least {needed}")
    if query_length <= 1:
        return strip[..., :key_length]
    if strip.stride()[-2:] != (width, 1):
        strip = strip.contiguous()
    size = (*strip.shape[:-1], key_length)
    stride = (*strip.stride()[:-2], width - 1, 1)
    return strip.as_strided(size, stride, strip.storage_offset() + query_length - 1)


def strided_strip(weights: Float[Tensor, "*n Lq Lk"], width: int) -> Float[Tensor, "*n Lq W"]:
    """strip[i, j - i + (Lq - 1)] = weights[i, j], zero elsewhere: the transpose of `strided_view`."""
    query_length, key_length = weights.shape[-2:]
    if query_length <= 1:
        return weights if width == key_length else F.pad(weights, (0, width - key_length))
    rows = F.pad(weights, (0, width - 1 - key_length)).flatten(-2)
    return F.pad(rows, (query_length - 1, 1)).unflatten(-1, (query_length, width))
