"""LogGridBias: a bias by a small network over log-spaced offsets of a grid (Liu et al. 2022, Swin V2)."""

from __future__ import annotations

from collections.abc import Sequence
from types import MappingProxyType

import torch
from jaxtyping import Float
from torch import Tensor, nn

from relattn.checks.values import check_size
from relattn.encodings.base import RelativeEncoding
from relattn.encodings.checks import check_axes, check_sizes
from relattn.encodings.function import FunctionBias

LARGEST = 16.0
"""The largest bias: Swin V2 multiplies a sigmoid with this number."""
FURTHEST = 8.0
"""The farthest offset of the trained grid before the logarithm; the logarithm turns it into 1."""


class LogGridBias(FunctionBias):
    """S_ij = scale * q_i . k_j + 16 sigmoid(MLP(x)_h),  x_c = sign(y_c) log2(1 + |y_c|) / 3,  y_c = -8 d_c / (s_c - 1).

    d_c is the offset on axis c of a grid, key - query; the published code counts query - key, so x has the other sign.
    A function of the offset works for any grid: weights from one size serve another size.

    The network is a layer with a bias, ReLU, and a layer without one. `function.mlp` holds it: a Sequential whose parts
    0 and 2 are Swin V2's `continuous_position_bias_mlp`.

    A call raises ShapeError: for a query of another number of heads.

    Source: Liu et al. 2022 (Swin Transformer V2), section 3.3, and its published code.

        import torch
        from relattn import LogGridBias, grid, relative_attention

        query, key, value = torch.randn(3, 2, 4, 8 * 8, 16).unbind(0)
        where = grid(8, 8)
        output = relative_attention(
            query, key, value, encoding=LogGridBias((8, 8), num_heads=4), query_position=where, key_position=where
        )
    """

    head_axes = MappingProxyType({"function.mlp.2.weight": 0})

    def __init__(
        self,
        sizes: Sequence[int],
        num_heads: int,
        *,
        pretrained_sizes: Sequence[int] | None = None,
        hidden: int = 512,
        axes: tuple[str, ...] = ("y", "x"),
    ) -> None:
        """A network of one hidden layer, which gives one number for each head.

        sizes: s, the sizes of the call's grid, in the order of `axes`.
        num_heads: the number of query heads.
        pretrained_sizes: the sizes in the division of y, for weights that were trained on another grid; `sizes` by
            default.
        hidden: the width of the network.
        axes: the names of the grid's axes.

        Raises ValueError: for sizes that are not ints of at least 1, and for axes, hidden or num_heads that do not fit.
        """
        sizes = divisors = check_sizes("LogGridBias sizes", sizes)
        if pretrained_sizes is not None:
            divisors = check_sizes("LogGridBias pretrained_sizes", pretrained_sizes)
        if len(divisors) != len(sizes):
            raise ValueError(f"LogGridBias pretrained_sizes: got {divisors} beside sizes {sizes}; expected as many")
        axes = check_axes("LogGridBias axes", axes, len(sizes))
        hidden, num_heads = check_size("hidden", hidden), check_size("num_heads", num_heads)
        super().__init__(_LogSpaced(divisors, num_heads, hidden), num_heads, axes=axes)
        self.sizes, self.pretrained_sizes, self.hidden = sizes, divisors, hidden

    def keep_heads(self, first: int, count: int) -> None:
        """The network keeps the heads: its last layer is split."""
        self.num_heads, self.heads = count, range(count)

    def extra_repr(self) -> str:
        """The arguments it was made with, for `print`."""
        return RelativeEncoding.extra_repr(self)


class _LogSpaced(nn.Module):
    """16 sigmoid(MLP(x)) of offsets [n, axes], or [n] on one axis."""

    def __init__(self, sizes: tuple[int, ...], num_heads: int, hidden: int) -> None:
        super().__init__()
        self.sizes = sizes
        self.mlp = nn.Sequential(nn.Linear(len(sizes), hidden), nn.ReLU(), nn.Linear(hidden, num_heads, bias=False))

    def forward(self, offsets: Float[Tensor, "n *axes"]) -> Float[Tensor, "H n"]:
        """The biases of each offset, head by head."""
        furthest = torch.tensor([max(size - 1, 1) for size in self.sizes], dtype=offsets.dtype, device=offsets.device)
        y = offsets.reshape(offsets.shape[0], -1) * (-FURTHEST / furthest)
        x = y.sign() * torch.log2(1.0 + y.abs()) / 3.0
        return LARGEST * self.mlp(x).t().sigmoid()
