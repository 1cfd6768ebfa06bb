"""The compiled rotation: features turned by their positions, read once and written once."""

from __future__ import annotations

import struct

import torch
from jaxtyping import Float
from torch import Tensor

from relattn.backends.cpu.library import Kernels, kernels
from relattn.interception import in_forward_mode, is_batched, is_intercepted

STRUCT = struct.Struct("=17q")
"""`Rotation` of kernels/rotation.h, field by field."""

DTYPES = (torch.float32, torch.bfloat16, torch.float16)

MIN_PARALLEL_NUMEL = 2**16
"""With fewer numbers one thread takes less time than waking others."""


def can_rotate(features: Tensor, cos: Tensor, sin: Tensor) -> bool:
    """Whether `rotate` takes these: they are on a CPU, there are kernels, and nothing but autograd watches the call."""
    if is_intercepted((features, cos, sin)) or torch.jit.is_tracing() or in_forward_mode():  # pyright: ignore[reportPrivateImportUsage]
        return False
    if features.device.type != "cpu" or features.dtype not in DTYPES or is_batched(features):
        return False
    return isinstance(kernels(), Kernels)


def rotate(
    features: Float[Tensor, "B H L D"],
    cos: Float[Tensor, "*B L pairs"],
    sin: Float[Tensor, "*B L pairs"],
    *,
    interleaved: bool,
    back: bool,
) -> Float[Tensor, "B H L D"]:
    """Every pair (a, b) of a row as (a cos - b sin, b cos + a sin), contiguous. back: by the negative angle.

    interleaved: features 2 f and 2 f + 1 are a pair, else f and f + pairs. The features beyond the pairs stay as they
    are. cos, sin: float32. No gradient is recorded.
    """
    native = kernels()
    assert isinstance(native, Kernels)
    dtype = features.dtype
    if dtype == torch.float16:
        features = features.float()
    if features.stride(3) != 1 or features.is_neg():
        features = features.resolve_neg().contiguous()
    cos, sin = cos.contiguous(), sin.contiguous()
    turned = features.new_empty(features.shape)
    batch, heads, length, width = features.shape
    call = STRUCT.pack(
        features.data_ptr(), *features.stride()[:3], turned.data_ptr(), cos.data_ptr(), sin.data_ptr(),
        cos.stride(0) if cos.dim() == 3 else 0, batch, heads, length, width, cos.shape[-1],
        interleaved, back, features.dtype == torch.bfloat16,
        torch.get_num_threads() if features.numel() >= MIN_PARALLEL_NUMEL else 1,
    )  # fmt: skip
    native.rotate(call)
    return turned if turned.dtype == dtype else turned.to(dtype)
