"""KeyQueryEmbedding: one learned row per offset, multiplied with the query and with the key (Huang et al. 2020)."""

from __future__ import annotations

from types import MappingProxyType

from torch import nn

from relattn.checks.values import check_size
from relattn.encodings.base import Key, Query, RelativeEncoding
from relattn.encodings.checks import empty_parameter
from relattn.equation.tables import OffsetTable
from relattn.equation.terms import ScoreTerms
from relattn.positions.positions import Positions


class KeyQueryEmbedding(RelativeEncoding):
    """S_ij = scale * (q_i . k_j + q_i . E[d] + E[d] . k_j), a learned row E[d] for every offset d = j - i.

    BERT's position_embedding_type="relative_key_query". Without the third term it is RelativeEmbedding, BERT's
    "relative_key".

    relative_embeddings E: the parameter, [num_heads or 1, 2 * max_length - 1, head_dim], rows for d = -(L-1)..(L-1),
        row 0 for the most distant past.

    A call raises ValueError: for a visible offset beyond the rows, which names max_length; ShapeError: for a query of
    another width or number of heads.

    Source: Huang, Liang, Xu and Xiang 2020 ("Improve Transformer Models with Better Relative Position Embeddings"),
    method 4.
    """

    head_axes = MappingProxyType({"relative_embeddings": 0})

    def __init__(self, head_dim: int, max_length: int, *, num_heads: int | None = None) -> None:
        """One row for each offset, for each head or for all.

        head_dim: the width of a head.
        max_length: L; the farthest offset with a row is L - 1.
        num_heads: None shares one table between all heads.

        Raises ValueError: for other sizes.
        """
        super().__init__()
        self.head_dim = check_size("head_dim", head_dim)
        self.max_length = check_size("max_length", max_length)
        self.num_heads = None if num_heads is None else check_size("num_heads", num_heads)
        heads, num_rows = self.num_heads or 1, 2 * self.max_length - 1
        sizes = {"max_length": self.max_length, "head_dim": self.head_dim, "num_heads": heads}
        self.relative_embeddings = empty_parameter(heads, num_rows, self.head_dim, **sizes)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Rows drawn from N(0, 1 / head_dim), so that q . E[d] starts at the size of q's own features."""
        nn.init.normal_(self.relative_embeddings, std=self.head_dim**-0.5)

    def terms(self, query: Query, key: Key, positions: Positions) -> ScoreTerms:
        """RK = RQ = E, over the caller's query."""
        table = OffsetTable(self.relative_embeddings, -(self.max_length - 1), "error")
        return ScoreTerms(relative_keys=table, relative_queries=table)

    def out_of_rows(self, table: str, positions: Positions) -> tuple[str, str]:
        """The name max_length, and what to do about it: give a larger one."""
        return "KeyQueryEmbedding max_length", f"make it with a larger max_length than {self.max_length}"
