"""Merge: the answer over the keys of several parts, from the answers over each.

With O_c and lse_c those of part c:   lse = log sum_c exp(lse_c),   O = sum_c exp(lse_c - lse) O_c
"""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor


class Merged:
    """O and lse over the parts so far; None before the first."""

    def __init__(self) -> None:
        self.output: Float[Tensor, "B Hq Lq Dv"] | None = None
        self.lse: Float[Tensor, "B Hq Lq"] | None = None

    def add(self, output: Float[Tensor, "B Hq Lq Dv"], lse: Float[Tensor, "B Hq Lq"]) -> None:
        """Take in one part more, whose output may be overwritten."""
        if self.output is None or self.lse is None:
            self.output, self.lse = output, lse
            return
        both = torch.logaddexp(self.lse, lse)
        finite = both.masked_fill(both == -torch.inf, 0.0)  # a row that sees nothing yet: e^(-inf - 0) = 0
        self.output.mul_((self.lse - finite).exp_().unsqueeze(-1))
        self.output.addcmul_(output, (lse - finite).exp_().unsqueeze(-1))
        self.lse = both
