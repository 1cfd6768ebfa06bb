"""ShawEmbedding: clipped relative keys and values (Shaw, Uszkoreit and Vaswani 2018)."""

from __future__ import annotations

from types import MappingProxyType

from torch import nn

from relattn.checks.values import check_flag, check_sides, check_size
from relattn.encodings.base import Key, Query, RelativeEncoding
from relattn.encodings.checks import empty_parameter
from relattn.equation.tables import OffsetTable
from relattn.equation.terms import ScoreTerms
from relattn.positions.positions import Positions


class ShawEmbedding(RelativeEncoding):
    """S_ij = scale * q_i . (k_j + a^K[clip(d)]);  O_i = sum_j softmax(S)_ij * (v_j + a^V[clip(d)]);  d = j - i.

    clip(d) = max(-left, min(d, right)): beyond the largest distance the edge row holds.

    relative_keys a^K, relative_values a^V: parameters [num_heads or 1, left + right + 1, head_dim]; values=False leaves
        a^V out (RETURNN's key_shift is max_distance=16, values=False, num_heads=None).

    A call raises ShapeError: for a query of another width or number of heads, or for values of another width where
    there are relative values.

    Source: Shaw et al. 2018, eq. 1 to 4, section 3.2.
    """

    head_axes = MappingProxyType({"relative_keys": 0, "relative_values": 0})

    def __init__(
        self, head_dim: int, max_distance: int | tuple[int, int], *, num_heads: int | None = None, values: bool = True
    ) -> None:
        """One row for each offset up to a distance, for each head or for all.

        head_dim: the width of a head.
        max_distance: left = right, or the pair (left, right); with 0 on a side, that whole side has the row of d = 0.
        num_heads: None shares the tables between all heads, as the paper does.
        values: whether there are relative values.

        Raises TypeError: for a `values` that is not a bool; ValueError: for other sizes or distances.
        """
        super().__init__()
        self.head_dim = check_size("head_dim", head_dim)
        self.left, self.right = self.max_distance = check_sides(max_distance)
        check_flag("values", values)
        self.values = values
        self.num_heads = None if num_heads is None else check_size("num_heads", num_heads)
        heads, num_rows = self.num_heads or 1, self.left + self.right + 1
        sizes = {"max_distance": max(self.max_distance), "head_dim": self.head_dim, "num_heads": heads}
        self.relative_keys = empty_parameter(heads, num_rows, self.head_dim, **sizes)
        self.relative_values = empty_parameter(heads, num_rows, self.head_dim, **sizes) if values else None
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Rows drawn from N(0, 1 / head_dim)."""
        for table in (self.relative_keys, self.relative_values):
            if table is not None:
                nn.init.normal_(table, std=self.head_dim**-0.5)

    def terms(self, query: Query, key: Key, positions: Positions) -> ScoreTerms:
        """RK = a^K and RV = a^V, clamped, over the caller's query."""
        values = self.relative_values
        relative_values = None if values is None else OffsetTable(values, -self.left, "clamp")
        relative_keys = OffsetTable(self.relative_keys, -self.left, "clamp")
        return ScoreTerms(relative_keys=relative_keys, relative_values=relative_values)
