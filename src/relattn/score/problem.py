"""Problem: all that a backend receives."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from relattn.score.mask import Mask
from relattn.score.positions import Positions
from relattn.score.table import OffsetTable


@dataclass(frozen=True)
class Problem:
    """One call of relative attention, checked and lowered: the equation's symbols under the field's names.

    query q [B, Hq, Lq, D], key k [B, Hk, Lk, D], value v [B, Hk, Lk, Dv], Hk divides Hq; q and k as the encoding left
    them. relative_query r [B, Hq, Lq, Dr] and relative_keys RK, both or neither; relative_queries RQ, relative_values
    RV, bias b.
    output_dtype: the dtype of the caller's query, in which the output is returned.
    """

    query: Float[Tensor, "B Hq Lq D"]
    key: Float[Tensor, "B Hk Lk D"]
    value: Float[Tensor, "B Hk Lk Dv"]
    positions: Positions
    mask: Mask
    scale: float
    output_dtype: torch.dtype
    relative_query: Float[Tensor, "B Hq Lq Dr"] | None = None
    relative_keys: OffsetTable | None = None
    relative_queries: OffsetTable | None = None
    relative_values: OffsetTable | None = None
    bias: OffsetTable | None = None
    dropout_p: float = 0.0
    return_lse: bool = False

    @property
    def score_dtype(self) -> torch.dtype:
        """The dtype of scores, softmax and all accumulation: float64 for float64 inputs, else float32."""
        return torch.float64 if self.output_dtype == torch.float64 else torch.float32

    @property
    def tables(self) -> dict[str, OffsetTable]:
        """The offset tables that the problem has, by name."""
        named = {
            "relative_keys": self.relative_keys,
            "relative_queries": self.relative_queries,
            "relative_values": self.relative_values,
            "bias": self.bias,
        }
        return {name: table for name, table in named.items() if table is not None}

    @property
    def num_groups(self) -> int:
        """How many query heads share one key head."""
        return self.query.shape[1] // self.key.shape[1]
