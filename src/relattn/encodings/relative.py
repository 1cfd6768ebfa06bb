"""RelativeEmbedding: a learned row per offset (Huang et al. 2018, and the generalised algorithm)."""

from __future__ import annotations

from types import MappingProxyType

from torch import Tensor, nn

from relattn.checks.values import check_choice, check_flag, check_size
from relattn.encodings.base import Key, Query, RelativeEncoding
from relattn.encodings.checks import empty_parameter
from relattn.equation.tables import Beyond, OffsetTable
from relattn.equation.terms import ScoreTerms
from relattn.positions.positions import SEQUENCE, Positions


class RelativeEmbedding(RelativeEncoding):
    """S_ij = scale * (q_i . k_j + q_i . E[d]), a learned row E[d] for every offset d = j - i.

    Causal: Music Transformer, rows for d = -(L-1)..0, L = max_length. Not causal: the generalised algorithm, for self-
    and cross-attention in both directions, rows for d = -(L-1)..(L-1). Row 0 belongs to the most distant past.

    relative_keys: the parameter, [num_heads or 1, R, head_dim], R = max_length when causal, else 2 * max_length - 1.

    A call raises ValueError: for a visible offset beyond the rows, where `beyond` is "error"; it names max_length;
    ShapeError: for a query of another width or number of heads.

    Source: Huang et al. 2018 (Music Transformer), section 3.4 and eq. 3.
    """

    head_axes = MappingProxyType({"relative_keys": 0})

    def __init__(
        self,
        head_dim: int,
        max_length: int,
        *,
        num_heads: int | None = None,
        causal: bool = False,
        beyond: Beyond = "error",
    ) -> None:
        """One row for each offset, for each head or for all.

        head_dim: the width of a head.
        max_length: L; the farthest offset with a row is L - 1.
        num_heads: None shares one table between all heads.
        causal: whether the table ends at the present.
        beyond: what holds for a visible offset that has no row. "error": an error; "clamp": the edge row; "zero":
            nothing is added (Tensor2Tensor).

        Raises TypeError: for a `causal` that is not a bool; ValueError: for other sizes or another `beyond`.
        """
        super().__init__()
        self.head_dim = check_size("head_dim", head_dim)
        self.max_length = check_size("max_length", max_length)
        self.num_heads = None if num_heads is None else check_size("num_heads", num_heads)
        check_flag("causal", causal)
        check_choice("beyond", beyond, ("error", "clamp", "zero"))
        self.causal = causal
        self.beyond: Beyond = beyond
        heads, num_rows = self.num_heads or 1, self.max_length if causal else 2 * self.max_length - 1
        sizes = {"max_length": self.max_length, "head_dim": self.head_dim, "num_heads": heads}
        self.relative_keys = empty_parameter(heads, num_rows, self.head_dim, **sizes)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Rows drawn from N(0, 1 / head_dim), so that q . E[d] starts at the size of q's own features."""
        nn.init.normal_(self.relative_keys, std=self.head_dim**-0.5)

    def terms(self, query: Query, key: Key, positions: Positions) -> ScoreTerms:
        """RK = E, over the caller's query."""
        return ScoreTerms(relative_keys=OffsetTable(self.relative_keys, -(self.max_length - 1), self.beyond))

    def out_of_rows(self, table: str, positions: Positions) -> tuple[str, str]:
        """The name max_length and the length that it needs; or causality, where there are no rows for the future."""
        first, last = positions.visible
        longer = f"a larger max_length than {self.max_length}"
        way_out = f"make it with {longer}, or with beyond='clamp' or 'zero'"
        sees_future = (isinstance(last, Tensor) or last > 0) and (positions.highest is None or positions.highest > 0)
        if self.causal and sees_future and positions.axis == SEQUENCE:
            way_out = "attend with is_causal=True (it has no rows for keys in the future), or make it with causal=False"
        elif self.causal and sees_future:
            both = "" if isinstance(first, Tensor) or first > -self.max_length else f" and {longer}"
            way_out = (
                f"make it with causal=False{both}, or with beyond='clamp' or 'zero' (it has no rows for keys in the "
                "future, and is_causal hides keys by their positions on the sequence alone)"
            )
        return "RelativeEmbedding max_length", way_out
