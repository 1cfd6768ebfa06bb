"""AlibiBias: a penalty linear in the distance (Press, Smith and Lewis 2022)."""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor

from relattn.arguments import check_size
from relattn.encodings.base import RelativeEncoding
from relattn.score.check_terms import check_heads
from relattn.score.positions import Positions
from relattn.score.table import OffsetTable
from relattn.score.terms import ScoreTerms


class AlibiBias(RelativeEncoding):
    """S_ij = scale * q_i . k_j - slope_h * |d|: no parameters, a slope per head, symmetric in both directions.

    slope_h = 2^(-8 h / n) for h = 1..n when num_heads n is a power of two; for another count the slopes of the next
    lower power of two, then every other slope of twice that many heads.

    Source: Press et al. 2022 (ALiBi), section 3, and the code it is published with for other head counts.
    """

    def __init__(self, num_heads: int) -> None:
        super().__init__()
        check_size("num_heads", num_heads)
        self.num_heads = num_heads

    def slopes(self, device: torch.device) -> Float[Tensor, "H"]:
        """slope_h of every head, in float64."""
        lower = 1 << (self.num_heads.bit_length() - 1)
        step = 8.0 / lower
        regular = torch.logspace(-step, -8.0, lower, base=2.0, dtype=torch.float64, device=device)
        if lower == self.num_heads:
            return regular
        count = self.num_heads - lower
        last = -step * (count - 0.5)
        between = torch.logspace(-step / 2, last, count, base=2.0, dtype=torch.float64, device=device)
        return torch.cat([regular, between])

    def terms(
        self, query: Float[Tensor, "B Hq Lq D"], key: Float[Tensor, "B Hk Lk D"], positions: Positions
    ) -> ScoreTerms:
        """b[d] = -slope_h * |d| on the span."""
        check_heads("AlibiBias", self.num_heads, None, query)
        span = positions.span
        distances = span.offsets(query.device).abs()
        dtype = torch.float64 if query.dtype == torch.float64 else torch.float32
        bias = (self.slopes(query.device).unsqueeze(-1) * -distances).to(dtype)
        return ScoreTerms(bias=OffsetTable(bias, span.first, "refuse"))

    def extra_repr(self) -> str:
        """The arguments it was made with, for `print`."""
        return f"{self.num_heads}"
