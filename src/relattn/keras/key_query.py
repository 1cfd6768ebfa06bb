"""KeyQueryEmbedding: one learned row per offset, multiplied with the query and with the key."""

from __future__ import annotations

from typing import Any

from relattn.checks.values import check_size
from relattn.keras.encoding import RelativeEncoding, check_heads
from relattn.keras.installed import keras
from relattn.keras.positions import Positions
from relattn.keras.table import OffsetTable
from relattn.keras.tensors import Tensor
from relattn.keras.terms import ScoreTerms


@keras.saving.register_keras_serializable(package="relattn")
class KeyQueryEmbedding(RelativeEncoding):
    """S_ij = scale * (q_i . k_j + q_i . E[d] + E[d] . k_j), a learned row E[d] for every offset d = j - i.

    BERT's position_embedding_type="relative_key_query". It works only inside `RelativeMultiHeadAttention`.

    Weights:
        relative_embeddings: E, of shape `(num_heads or 1, 2 * max_length - 1, head_dim)`. Row 0 belongs to the most
            distant past.

    Raises ValueError: for a visible offset beyond the rows. If lengths and positions are only known when the graph
    runs, the scores are NaN instead.

    Reference: Huang, Liang, Xu and Xiang 2020, method 4.
    """

    def __init__(self, head_dim: int, max_length: int, *, num_heads: int | None = None, **kwargs: Any) -> None:
        """One row for each offset, for each head or for all.

        Args:
            head_dim: Width of a head.
            max_length: The most positions that queries or keys may span.
            num_heads: The number of heads, each with its own table; `None` shares one table.
        """
        super().__init__(**kwargs)
        self.head_dim = check_size("head_dim", head_dim)
        self.max_length = check_size("max_length", max_length)
        self.num_heads = None if num_heads is None else check_size("num_heads", num_heads)

    def build(self, queries_shape: Any = None) -> None:
        """Makes the table; rows are drawn from N(0, 1 / head_dim)."""
        shape = (self.num_heads or 1, 2 * self.max_length - 1, self.head_dim)
        initializer = keras.initializers.RandomNormal(stddev=self.head_dim**-0.5)
        self.relative_embeddings = self.add_table("relative_embeddings", shape, initializer)

    def terms(self, queries: Tensor, positions: Positions) -> ScoreTerms:
        """RK = RQ = E, over the query itself."""
        check_heads("KeyQueryEmbedding", self.num_heads, self.head_dim, queries)
        reach = self.max_length - 1
        positions.check_within(-reach, reach, self._beyond)
        table = OffsetTable(self.relative_embeddings.value, -reach)
        return ScoreTerms(relative_keys=table, relative_queries=table)

    def _beyond(self, smallest: int, largest: int) -> str:
        reach = self.max_length - 1
        return (
            f"KeyQueryEmbedding max_length: the offsets {smallest}..{largest} are visible and "
            f"max_length={self.max_length} reaches {-reach}..{reach}; make it with a larger max_length"
        )

    def get_config(self) -> dict[str, Any]:
        """The arguments it was made with."""
        return {
            **super().get_config(),
            "head_dim": self.head_dim,
            "max_length": self.max_length,
            "num_heads": self.num_heads,
        }
