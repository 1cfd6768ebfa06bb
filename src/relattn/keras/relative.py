"""RelativeEmbedding: a learned row per offset."""

from __future__ import annotations

from typing import Any

from relattn.checks.values import check_choice, check_flag, check_size
from relattn.keras.encoding import RelativeEncoding, check_heads
from relattn.keras.installed import keras, ops
from relattn.keras.positions import Positions
from relattn.keras.table import BEYOND, Beyond, OffsetTable
from relattn.keras.tensors import Index, Place, Tensor
from relattn.keras.terms import ScoreTerms


@keras.saving.register_keras_serializable(package="relattn")
class RelativeEmbedding(RelativeEncoding):
    """S_ij = scale * (q_i . k_j + q_i . E[d]), a learned row E[d] for every offset d = key - query position.

    `causal=False`: the generalised algorithm, for self- and cross-attention in both directions. `causal=True`: Music
    Transformer, rows for the past and the present only.

    Weights:
        relative_keys: E, of shape `(num_heads or 1, R, head_dim)` with `R = 2 * max_length - 1`, or `max_length` when
            causal. Row 0 belongs to the most distant past.

    Call arguments: as in `RelativeEncoding`.

    Returns:
        q_i . E[d] of shape `(B, H, Lq, Lk)`; 0 for pairs in the future where `causal` and `beyond="error"`.

    Raises ValueError: for a visible offset without a row, with `beyond="error"`. If lengths and positions are only
    known when the graph runs (`tf.function`, `jax.jit`), the scores are NaN instead.

    Reference: Huang et al. 2018, Music Transformer, section 3.4.
    """

    def __init__(
        self,
        head_dim: int,
        max_length: int,
        *,
        num_heads: int | None = None,
        causal: bool = False,
        beyond: Beyond = "error",
        **kwargs: Any,
    ) -> None:
        """One row for each offset, for each head or for all.

        Args:
            head_dim: Width of a head.
            max_length: The most positions that queries or keys may span; offsets reach from `1 - max_length` to
                `max_length - 1`, or to 0 when causal.
            num_heads: The number of heads, each with its own table; `None` shares one table.
            causal: Whether the table ends at the present.
            beyond: What holds for a visible offset without a row: `"error"`, ValueError; `"clamp"`, the edge row;
                `"zero"`, nothing is added.
        """
        super().__init__(**kwargs)
        self.head_dim = check_size("head_dim", head_dim)
        self.max_length = check_size("max_length", max_length)
        self.num_heads = None if num_heads is None else check_size("num_heads", num_heads)
        check_flag("causal", causal)
        check_choice("beyond", beyond, BEYOND)
        self.causal = causal
        self.beyond: Beyond = beyond

    def build(self, queries_shape: Any = None) -> None:
        """Makes the table; rows are drawn from N(0, 1 / head_dim)."""
        num_rows = self.max_length if self.causal else 2 * self.max_length - 1
        shape = (self.num_heads or 1, num_rows, self.head_dim)
        self.relative_keys = self.add_table(
            "relative_keys", shape, keras.initializers.RandomNormal(stddev=self.head_dim**-0.5)
        )

    def terms(self, queries: Tensor, positions: Positions) -> ScoreTerms:
        """RK = E, over the query itself."""
        check_heads("RelativeEmbedding", self.num_heads, self.head_dim, queries)
        table = OffsetTable(self.relative_keys.value, 1 - self.max_length, self.beyond)
        if table.defined is not None:
            positions.check_within(*table.defined, self._beyond)
        return ScoreTerms(relative_keys=table)

    def positions_of(
        self, queries: Tensor, key_length: Index | None, query_position: Place, key_position: Place
    ) -> Positions:
        """The positions of a call of this layer alone, with the future hidden where it has no rows."""
        positions = super().positions_of(queries, key_length, query_position, key_position)
        return positions._replace(highest=0) if self.causal and self.beyond == "error" else positions

    def call(
        self, queries: Tensor, key_length: Index | None = None, query_position: Place = 0, key_position: Place = 0
    ) -> Tensor:
        """q_i . E[d] `(B, H, Lq, Lk)`."""
        scores = super().call(queries, key_length, query_position, key_position)
        positions = self.positions_of(queries, key_length, query_position, key_position)
        if positions.highest is None:
            return scores
        past = positions.key_positions()[:, None, None, :] <= positions.query_positions()[:, None, :, None]
        return ops.where(past, scores, ops.zeros_like(scores))

    def _beyond(self, smallest: int, largest: int) -> str:
        length = self.max_length
        if self.causal and smallest > -length:
            return (
                f"RelativeEmbedding: keys lie up to {largest} positions in the future and causal=True has no rows for "
                "them; attend with use_causal_mask=True, or make it with causal=False"
            )
        return (
            f"RelativeEmbedding max_length: the offsets {smallest}..{largest} are visible and max_length={length} "
            f"reaches {1 - length}..{0 if self.causal else length - 1}; make it with a larger max_length, or with "
            "beyond='clamp' or 'zero'"
        )

    def get_config(self) -> dict[str, Any]:
        """The arguments it was made with."""
        return {
            **super().get_config(),
            "head_dim": self.head_dim,
            "max_length": self.max_length,
            "num_heads": self.num_heads,
            "causal": self.causal,
            "beyond": self.beyond,
        }

    @classmethod
    def from_config(cls, config: dict[str, Any]) -> RelativeEmbedding:
        """The encoding that `get_config` describes.

        Raises ValueError: for a `beyond` that it does not know. Keras puts what the constructor raises into a page.
        """
        check_choice("beyond", config.get("beyond", "error"), BEYOND)
        return super().from_config(config)
