"""Features turned by given angles: by compiled code where that runs, else by operations of PyTorch."""

from __future__ import annotations

from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from relattn.backends.cpu.rotation import can_rotate, rotate

OfPairs = Float[Tensor, "*B L pairs"]


def rotated(
    features: Float[Tensor, "B H L D"], cos: OfPairs, sin: OfPairs, *, interleaved: bool, back: bool = False
) -> Float[Tensor, "B H L D"]:
    """Every pair (a, b) of a row as (a cos - b sin, b cos + a sin); back: by the negative angle.

    interleaved: features 2 f and 2 f + 1 are a pair, else f and f + pairs. The features beyond the pairs stay as they
        are. It is computed in the dtype of cos and sin, which get no gradients. The answer has the features' dtype.
    """
    if not can_rotate(features, cos, sin):
        return _by_operations(features, cos, sin, interleaved, back)
    if torch.is_grad_enabled() and features.requires_grad:
        turned = _Rotation.apply(features, cos, sin, interleaved, back)
        assert isinstance(turned, Tensor)
        return turned
    return rotate(features, cos, sin, interleaved=interleaved, back=back)


class _Rotation(torch.autograd.Function):
    """The compiled rotation. Its derivative is the rotation by the negative angle, which is again `rotated`."""

    @staticmethod
    def forward(ctx: Any, features: Tensor, cos: Tensor, sin: Tensor, interleaved: bool, back: bool) -> Tensor:
        ctx.save_for_backward(cos, sin)
        ctx.interleaved, ctx.back = interleaved, back
        return rotate(features, cos, sin, interleaved=interleaved, back=back)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:  # pyright: ignore[reportIncompatibleMethodOverride]
        turned = rotated(gradient, *ctx.saved_tensors, interleaved=ctx.interleaved, back=not ctx.back)
        return turned, None, None, None, None


def _by_operations(features: Tensor, cos: Tensor, sin: Tensor, interleaved: bool, back: bool) -> Tensor:
    """The same by operations that every mode and transform of PyTorch supports."""
    if cos.dim() == 3:
        cos, sin = cos.unsqueeze(1), sin.unsqueeze(1)
    if back:
        sin = -sin
    num_turned = 2 * cos.shape[-1]
    turned = features[..., :num_turned].to(cos.dtype)
    if interleaved:
        first, second = turned[..., 0::2], turned[..., 1::2]
    else:
        first, second = turned.chunk(2, dim=-1)
    pair = [first * cos - second * sin, second * cos + first * sin]
    joined = torch.stack(pair, dim=-1).reshape(turned.shape) if interleaved else torch.cat(pair, dim=-1)
    joined = joined.to(features.dtype)
    if num_turned == features.shape[-1]:
        return joined
    return torch.cat([joined, features[..., num_turned:]], dim=-1)
