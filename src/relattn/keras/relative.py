"""RelativePositionalEmbedding: a learned row per offset."""

from __future__ import annotations

from typing import Any

from relattn.arguments import check_flag, check_size
from relattn.keras.encoding import RelativeEncoding, ScoreTerms, check_heads
from relattn.keras.installed import keras, ops
from relattn.keras.positions import Positions
from relattn.keras.table import OffsetTable
from relattn.keras.tensors import Index, Tensor


@keras.saving.register_keras_serializable(package="relattn")
class RelativePositionalEmbedding(RelativeEncoding):
    """S_ij = q_i . E[d], a learned row E[d] for every offset d = key position - query position.

    `causal=False`: the generalised algorithm, for self- and cross-attention in both directions. `causal=True`: Music
    Transformer, rows for the past and the present only.

    Args:
        head_size: Width of a head.
        sequence_length: The most positions that queries or keys may span; offsets reach from `1 - sequence_length` to
            `sequence_length - 1`, or to 0 when causal.
        num_heads: Heads with a table of their own each; `None` shares one table.
        causal: Whether the table ends at the present.

    Weights:
        relative_keys: E, of shape `(num_heads or 1, R, head_size)` with `R = 2 * sequence_length - 1`, or
            `sequence_length` when causal. Row 0 belongs to the most distant past.

    Call arguments:
        queries: Float tensor of shape `(B, H, Lq, head_size)`.
        key_length: Number of keys; as many as queries unless given.
        query_position, key_position: Position of the first query and of the first key, an int or a scalar integer
            tensor (for caches). Default to 0.

    Returns:
        S of shape `(B, H, Lq, Lk)`. When causal, pairs in the future have no row: their S is 0.

    Raises ValueError for an offset beyond the table. Where only the running graph knows lengths and starts
    (`tf.function`, `jax.jit`), S is NaN instead.

    Reference: Huang et al. 2018, Music Transformer, section 3.4.
    """

    def __init__(
        self, head_size: int, sequence_length: int, num_heads: int | None = None, causal: bool = False, **kwargs: Any
    ) -> None:
        super().__init__(**kwargs)
        check_size("head_size", head_size)
        check_size("sequence_length", sequence_length)
        if num_heads is not None:
            check_size("num_heads", num_heads)
        check_flag("causal", causal)
        self.head_size, self.sequence_length = head_size, sequence_length
        self.num_heads, self.causal = num_heads, causal
        self.highest_offset = 0 if causal else None

    def build(self, queries_shape: Any = None) -> None:
        """Makes the table; rows are drawn from N(0, 1 / head_size)."""
        num_rows = self.sequence_length if self.causal else 2 * self.sequence_length - 1
        shape = (self.num_heads or 1, num_rows, self.head_size)
        self.relative_keys = self.add_table(
            "relative_keys", shape, keras.initializers.RandomNormal(stddev=self.head_size**-0.5)
        )

    def terms(self, queries: Tensor, positions: Positions) -> ScoreTerms:
        """RK = E, over the query itself."""
        check_heads("RelativePositionalEmbedding", self.num_heads, self.head_size, queries)
        last = 0 if self.causal else self.sequence_length - 1
        nothing = positions.unless_beyond(1 - self.sequence_length, last, self._beyond)
        table = OffsetTable(self.relative_keys.value, 1 - self.sequence_length)
        relative_query = queries if isinstance(nothing, float) else queries + ops.cast(nothing, queries.dtype)
        return ScoreTerms(relative_query=relative_query, relative_keys=table)

    def call(
        self, queries: Tensor, key_length: Index | None = None, query_position: Index = 0, key_position: Index = 0
    ) -> Tensor:
        """S `(B, H, Lq, Lk)`."""
        scores = super().call(queries, key_length, query_position, key_position)
        if not self.causal:
            return scores
        query_length, key_length = ops.shape(scores)[2:]
        last_key = query_position - key_position + ops.arange(query_length)[:, None]
        return ops.where(ops.arange(key_length) <= last_key, scores, ops.zeros_like(scores))

    def _beyond(self, smallest: Index, largest: Index) -> str:
        length = self.sequence_length
        if self.causal and smallest > -length:
            return (
                f"RelativePositionalEmbedding: keys lie up to {largest} positions in the future and causal=True has no "
                "rows for them; attend with use_causal_mask=True, or make it with causal=False"
            )
        return (
            f"RelativePositionalEmbedding sequence_length: the offsets {smallest}..{largest} are visible and "
            f"sequence_length={length} reaches {1 - length}..{0 if self.causal else length - 1}; make it with a larger "
            "sequence_length"
        )

    def get_config(self) -> dict[str, Any]:
        """The arguments it was made with."""
        return {
            **super().get_config(),
            "head_size": self.head_size,
            "sequence_length": self.sequence_length,
            "num_heads": self.num_heads,
            "causal": self.causal,
        }
