"""FunctionBias: a bias that is your function of the offset."""

from __future__ import annotations

from collections.abc import Callable

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.func import functional_call

from relattn.checks.tensors import shape
from relattn.checks.terms import check_kind
from relattn.checks.values import came, check_size
from relattn.encodings.base import Key, Query, RelativeEncoding
from relattn.encodings.checks import check_axes, check_heads
from relattn.equation.tables import OffsetTable, wide
from relattn.equation.terms import ScoreTerms
from relattn.errors import ShapeError, UnsupportedError
from relattn.positions.places import JointPositions
from relattn.positions.positions import SEQUENCE, Positions


class FunctionBias(RelativeEncoding):
    """S_ij = scale * q_i . k_j + f(d)_h, a function f of the offset d = j - i with one number per head.

    f is called once per call, on every visible offset from the smallest to the largest; on several axes on every
    combination of offsets. It is never called on pairs. A Module is registered and trained. In a model that was
    converted to half precision it runs with its numbers widened to float32.

    A call raises ShapeError: for a query of another number of heads, or for a function that returns another shape;
    TypeError: for a function that returns no tensor, or another dtype; ValueError: for a function that returns a tensor
    on another device.

        import torch
        from relattn import FunctionBias, relative_attention

        query, key, value = torch.randn(3, 2, 4, 10, 16).unbind(0)
        widths = torch.tensor([1.0, 2.0, 4.0, 8.0]).unsqueeze(-1)
        gaussian = FunctionBias(lambda d: -((d / widths) ** 2), num_heads=4)
        output = relative_attention(query, key, value, encoding=gaussian)
    """

    def __init__(
        self,
        function: Callable[[Float[Tensor, "n *axes"]], Float[Tensor, "H n"]],
        num_heads: int,
        *,
        axes: tuple[str, ...] = (SEQUENCE,),
    ) -> None:
        """A function that gives one number for each head and offset.

        function: takes the offsets d, [n], or on several axes [n, axes], and returns f(d), [num_heads, n], in the dtype
            and on the device of the offsets: float32, or float64 where the query is float64.
        num_heads: the number of query heads.
        axes: the names of the axes whose offsets it takes; only the sequence by default.

        Raises TypeError: for a function that cannot be called; ValueError: for another num_heads or other axes.
        """
        super().__init__()
        if not callable(function):
            raise TypeError(f"function: got {came(function)}; expected a Module or a function of the offsets")
        self.num_heads = check_size("num_heads", num_heads)
        self.heads: range = range(self.num_heads)  # the function is called for all heads
        self.axes = check_axes("FunctionBias axes", axes)
        self.function = function

    def terms(self, query: Query, key: Key, positions: Positions) -> ScoreTerms:
        """b[d] = f(d) on the span."""
        check_heads("FunctionBias", len(self.heads), None, query)
        span = positions.span
        dtype = torch.float64 if query.dtype == torch.float64 else torch.float32
        offsets = positions.offsets_on_axes() if isinstance(positions, JointPositions) else span.offsets(query.device)
        offsets = offsets.to(dtype)
        rows = self._called(offsets, query)
        self._check_rows(rows, offsets)
        return ScoreTerms(bias=OffsetTable(self._of_heads(rows), span.first, "error"))

    def _of_heads(self, rows: Float[Tensor, "H n"]) -> Float[Tensor, "own n"]:
        """The rows of the heads that it has.

        Raises UnsupportedError: where the gradients of the other heads would be lost, because their parameters are not
        known.
        """
        if len(self.heads) == self.num_heads:
            return rows
        if rows.requires_grad and not isinstance(self.function, nn.Module):
            raise UnsupportedError(
                "FunctionBias function: got one that is no Module and learns, while processes share the heads; "
                "expected a Module, whose gradients relattn.distributed.HeadwiseParallel adds up"
            )
        return rows[self.heads.start : self.heads.stop]

    def _called(self, offsets: Float[Tensor, "n *axes"], query: Tensor) -> Float[Tensor, "H n"]:
        """function(offsets), of a Module with its half-precision numbers widened."""
        if not isinstance(self.function, nn.Module):
            return self.function(offsets)
        held = {**dict(self.function.named_parameters()), **dict(self.function.named_buffers())}
        floats = {name: tensor for name, tensor in held.items() if tensor.is_floating_point()}
        narrow = {name: wide(tensor) for name, tensor in floats.items() if tensor.dtype.itemsize < 4}
        for name in narrow:
            if held[name].is_meta and not query.is_meta:
                raise UnsupportedError(
                    f"FunctionBias function.{name}: got {held[name].dtype} on meta, where offloading leaves it until "
                    "the function runs, too late to be widened; expected float32; convert the function with .float() "
                    "before the model is offloaded"
                )
        try:
            return functional_call(self.function, narrow, (offsets,)) if narrow else self.function(offsets)
        except Exception:
            for name, tensor in floats.items():
                check_kind(f"function.{name}", tensor, query)
            raise

    def _check_rows(self, rows: object, offsets: Float[Tensor, "n *axes"]) -> None:
        if not isinstance(rows, Tensor):
            raise TypeError(f"FunctionBias function: returned {type(rows).__name__}; expected a tensor")
        heads, count = self.num_heads, offsets.shape[0]
        if rows.dim() != 2 or rows.shape[0] != heads or rows.shape[1] != count:
            raise ShapeError(
                f"FunctionBias function: returned shape {shape(rows)} for {count} offsets; expected "
                f"[{heads}, {count}], a number per head and offset"
            )
        if rows.dtype != offsets.dtype:
            raise TypeError(
                f"FunctionBias function: returned dtype {rows.dtype}; expected {offsets.dtype}, that of the offsets"
            )
        if rows.device != offsets.device:
            raise ValueError(
                f"FunctionBias function: returned a tensor on {rows.device}; expected {offsets.device}, the device of "
                "the offsets"
            )

    def extra_repr(self) -> str:
        """The arguments it was made with, for `print`; a Module is printed below."""
        axes = "" if self.axes == (SEQUENCE,) else f", axes={self.axes}"
        if isinstance(self.function, nn.Module):
            return f"num_heads={self.num_heads}{axes}"
        name = getattr(self.function, "__name__", type(self.function).__name__)
        return f"function={name}, num_heads={self.num_heads}{axes}"
