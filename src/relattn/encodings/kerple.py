"""KerpleBias: a learned penalty, logarithmic in the distance or a power of it (Chi et al. 2022)."""

from __future__ import annotations

from types import MappingProxyType
from typing import Literal

import torch
from jaxtyping import Float
from torch import Tensor, nn

from relattn.checks.terms import check_kind
from relattn.checks.values import check_choice, check_size
from relattn.encodings.base import Key, Query, RelativeEncoding
from relattn.encodings.checks import check_heads, empty_parameter
from relattn.encodings.constants import LONG_TENSORS, lru_tensor_cache
from relattn.equation.tables import OffsetTable, wide
from relattn.equation.terms import ScoreTerms
from relattn.positions.positions import Positions, Span, Start

LEAST = 0.01
"""In the authors' code no parameter falls below this number."""
LARGEST_POWER = 2.0
"""Up to this power the kernel is conditionally positive definite."""


class KerpleBias(RelativeEncoding):
    """S_ij = scale * q_i . k_j - r1_h * log(1 + r2_h * |d|); kind="power": - r1_h * |d|^r2_h.  d = j - i.

    r1, r2: the parameters [num_heads]. The equation uses them within bounds: at least 0.01, and a power at most 2. A
        parameter beyond a bound counts as the bound, with the gradient at the bound. So training can bring it back.

    A call raises ShapeError: for a query of another number of heads.

    Source: Chi et al. 2022 (KERPLE), the logarithmic and the power variant. The bounds and the starting values come
    from its published code. There `bias_p` and `bias_a` are r1 and r2 of "log", and r2 and r1 of "power".

        import torch
        from relattn import KerpleBias, relative_attention

        query, key, value = torch.randn(3, 2, 4, 10, 16).unbind(0)
        output = relative_attention(query, key, value, is_causal=True, encoding=KerpleBias(num_heads=4))
    """

    head_axes = MappingProxyType({"r1": 0, "r2": 0})

    def __init__(self, num_heads: int, kind: Literal["log", "power"] = "log") -> None:
        """Two numbers for each head.

        num_heads: the number of query heads.
        kind: "log" or "power".

        Raises ValueError: for another kind or num_heads.
        """
        super().__init__()
        self.num_heads = check_size("num_heads", num_heads)
        check_choice("kind", kind, ("log", "power"))
        self.kind: Literal["log", "power"] = kind
        self.r1, self.r2 = (empty_parameter(self.num_heads, num_heads=self.num_heads) for _ in range(2))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """r1 drawn from U(0, 2) and r2 from U(0, 1); for a power r1 from U(0, 1) and r2 from U(0, 2)."""
        largest_r1, largest_r2 = (2.0, 1.0) if self.kind == "log" else (1.0, 2.0)
        nn.init.uniform_(self.r1, 0.0, largest_r1)
        nn.init.uniform_(self.r2, 0.0, largest_r2)

    def terms(self, query: Query, key: Key, positions: Positions) -> ScoreTerms:
        """b[d] = -r1 * log(1 + r2 * |d|), or -r1 * |d|^r2, on the span."""
        check_heads("KerpleBias", self.num_heads, None, query, self.r1)
        check_kind("r1", self.r1, query)
        check_kind("r2", self.r2, query)
        span = positions.span
        r1 = _bounded(wide(self.r1), None).unsqueeze(-1)
        r2 = _bounded(wide(self.r2), LARGEST_POWER if self.kind == "power" else None).unsqueeze(-1)
        distances = _distances(*span, r1.dtype, query.device)
        grown = torch.log1p(r2 * distances) if self.kind == "log" else _power(distances, r2)
        return ScoreTerms(bias=OffsetTable(-r1 * grown, span.first, "error"))


@lru_tensor_cache(LONG_TENSORS)
def _distances(first: Start, count: int, dtype: torch.dtype, device: torch.device) -> Float[Tensor, "count"]:
    """|d| on a span."""
    return Span(first, count).offsets(device).abs().to(dtype)


def _bounded(parameter: Float[Tensor, "H"], largest: float | None) -> Float[Tensor, "H"]:
    """The parameter within LEAST and `largest`; beyond a bound with the gradient at the bound."""
    value = parameter.detach()
    return value.clamp(LEAST, largest) + (parameter - value)


def _power(distances: Float[Tensor, "n"], power: Float[Tensor, "H 1"]) -> Float[Tensor, "H n"]:
    """distances^power, and 0 at distance 0. There the derivatives by the power are 0 too, of any order."""
    return distances.clamp(min=1).pow(power) * (distances > 0)
