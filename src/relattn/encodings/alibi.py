"""AlibiBias: a penalty linear in the distance (Press, Smith and Lewis 2022)."""

from __future__ import annotations

from collections.abc import Sequence
from types import MappingProxyType

import torch
from jaxtyping import Float, Float64, Int64
from torch import Tensor, nn

from relattn.checks.terms import check_kind
from relattn.checks.values import check_flag, check_size, check_slopes
from relattn.encodings.base import Key, Query, RelativeEncoding
from relattn.encodings.checks import check_heads, empty_parameter
from relattn.encodings.constants import LONG_TENSORS, SMALL_TENSORS, lru_tensor_cache
from relattn.equation.tables import OffsetTable
from relattn.equation.terms import ScoreTerms
from relattn.positions.offsets import alibi_slopes
from relattn.positions.positions import Positions, Span, Start

Slopes = int | tuple[float, ...]


class AlibiBias(RelativeEncoding):
    """S_ij = scale * q_i . k_j - slope_h * |d|; signed: + slope_h * d, so that the future gains.  d = j - i.

    slopes: a tuple of floats, exact in a model of any dtype, which are copied to a GPU in every call. Or, with
        `learned`, the parameter [num_heads].

    A call raises ShapeError: for a query of another number of heads.

    Source: Press et al. 2022 (ALiBi), section 3, and the code it is published with for other head counts.
    """

    head_axes = MappingProxyType({"slopes": 0})

    def __init__(
        self,
        num_heads: int,
        slopes: Sequence[float] | Float[Tensor, "H"] | None = None,
        learned: bool = False,
        signed: bool = False,
    ) -> None:
        """One slope for each head.

        num_heads: the number of query heads.
        slopes: one number above 0 per head; None takes those of the paper, `relattn.offsets.alibi_slopes`.
        learned: the slopes train. They start at those numbers, and nothing keeps them above 0.
        signed: without the absolute value, as some code has it. In causal attention it makes no difference.

        Raises TypeError: for a `learned` or `signed` that is not a bool; ValueError: for other slopes or num_heads.
        """
        super().__init__()
        self.num_heads = check_size("num_heads", num_heads)
        self.heads: range = range(self.num_heads)  # the paper's slopes depend on the number of all heads
        check_flag("learned", learned)
        check_flag("signed", signed)
        self.learned, self.signed = learned, signed
        self.given_slopes = None if slopes is None else check_slopes(slopes, self.num_heads)
        self.slopes: nn.Parameter | tuple[float, ...] | None = self.given_slopes
        if learned:
            self.slopes = empty_parameter(self.num_heads, num_heads=self.num_heads)
            self.reset_parameters()

    def reset_parameters(self) -> None:
        """Learned slopes back to where they started."""
        if isinstance(self.slopes, Tensor):
            start = alibi_slopes(self.num_heads).tolist() if self.given_slopes is None else self.given_slopes
            with torch.no_grad():
                self.slopes.copy_(torch.tensor(start, dtype=torch.float64))

    def terms(self, query: Query, key: Key, positions: Positions) -> ScoreTerms:
        """b[d] = -slope_h * |d|, or slope_h * d, on the span."""
        parameter = self.slopes if isinstance(self.slopes, Tensor) else None
        check_heads("AlibiBias", len(self.heads), None, query, parameter)
        if parameter is not None:
            check_kind("slopes", parameter, query)
        dtype = torch.float64 if query.dtype == torch.float64 else torch.float32
        span = positions.span
        if parameter is None:
            span = span.rounded()
            slopes = self.num_heads if self.given_slopes is None else self.given_slopes
            bias = _fixed_rows(*span, slopes, self.heads, self.signed, dtype, query.device)
        else:
            bias = _rows(parameter.double(), _distances(*span, self.signed, query.device), dtype)
        return ScoreTerms(bias=OffsetTable(bias, span.first, "error"))

    def extra_repr(self) -> str:
        """The arguments it was made with, for `print`."""
        slopes = None if self.given_slopes is None else list(self.given_slopes)
        return f"{self.num_heads}, slopes={slopes}, learned={self.learned}, signed={self.signed}"


def _rows(slopes: Float64[Tensor, "H"], distances: Int64[Tensor, "n"], dtype: torch.dtype) -> Float[Tensor, "H n"]:
    return (slopes.unsqueeze(-1) * distances).to(dtype)


@lru_tensor_cache(LONG_TENSORS)
def _distances(first: Start, count: int, signed: bool, device: torch.device) -> Int64[Tensor, "count"]:
    """-|d|, or d, on a span."""
    offsets = Span(first, count).offsets(device)
    return offsets if signed else -offsets.abs()


@lru_tensor_cache(LONG_TENSORS)
def _fixed_rows(
    first: Start, count: int, slopes: Slopes, heads: range, signed: bool, dtype: torch.dtype, device: torch.device
) -> Float[Tensor, "H count"]:
    """The rows of these heads on a span. slopes: those given, or the number of all heads for the paper's."""
    of_all = _paper_slopes(slopes, device) if isinstance(slopes, int) else _given_slopes(slopes, device)
    return _rows(of_all[heads.start : heads.stop], _distances(first, count, signed, device), dtype)


@lru_tensor_cache(SMALL_TENSORS)
def _given_slopes(slopes: tuple[float, ...], device: torch.device) -> Float64[Tensor, "H"]:
    return torch.tensor(slopes, dtype=torch.float64, device=device)


@lru_tensor_cache(SMALL_TENSORS)
def _paper_slopes(num_heads: int, device: torch.device) -> Float64[Tensor, "H"]:
    """`relattn.offsets.alibi_slopes`, made on the device."""
    lower = 1 << (num_heads.bit_length() - 1)
    step = 8.0 / lower
    regular = torch.logspace(-step, -8.0, lower, base=2.0, dtype=torch.float64, device=device)
    if lower == num_heads:
        return regular
    count = num_heads - lower
    last = -step * (count - 0.5)
    between = torch.logspace(-step / 2, last, count, base=2.0, dtype=torch.float64, device=device)
    return torch.cat([regular, between])
