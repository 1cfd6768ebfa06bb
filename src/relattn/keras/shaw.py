"""ShawEmbedding: clipped relative keys and values."""

from __future__ import annotations

from typing import Any

from relattn.checks.values import check_flag, check_sides, check_size
from relattn.keras.encoding import RelativeEncoding, check_heads
from relattn.keras.installed import keras
from relattn.keras.positions import Positions
from relattn.keras.table import OffsetTable
from relattn.keras.tensors import Tensor
from relattn.keras.terms import ScoreTerms


@keras.saving.register_keras_serializable(package="relattn")
class ShawEmbedding(RelativeEncoding):
    """S_ij = scale * q_i . (k_j + a^K[clip(d)]);  O_i = sum_j softmax(S)_ij * (v_j + a^V[clip(d)]);  d = j - i.

    clip(d) = max(-left, min(d, right)): beyond the largest distance the edge row holds.

    Weights:
        relative_keys, relative_values: a^K and a^V, each `(num_heads or 1, left + right + 1, head_dim)`. Row 0 belongs
            to the most distant past.

    Call arguments and the answer: as in `RelativeEncoding`, for the relative keys. The relative values work only inside
    `RelativeMultiHeadAttention`.

    Reference: Shaw et al. 2018, eq. 1 to 4, section 3.2.
    """

    def __init__(
        self,
        head_dim: int,
        max_distance: int | tuple[int, int],
        *,
        num_heads: int | None = None,
        values: bool = True,
        **kwargs: Any,
    ) -> None:
        """One row for each offset up to a distance, for each head or for all.

        Args:
            head_dim: Width of a head.
            max_distance: `left = right`, or the pair `(left, right)`.
            num_heads: The number of heads, each with its own tables; `None` shares them, as the paper does.
            values: Whether there are relative values.
        """
        super().__init__(**kwargs)
        self.head_dim = check_size("head_dim", head_dim)
        self.left, self.right = check_sides(max_distance)
        self.num_heads = None if num_heads is None else check_size("num_heads", num_heads)
        check_flag("values", values)
        self.values = values

    def build(self, queries_shape: Any = None) -> None:
        """Makes the tables; rows are drawn from N(0, 1 / head_dim)."""
        shape = (self.num_heads or 1, self.left + self.right + 1, self.head_dim)
        for name in ("relative_keys", "relative_values") if self.values else ("relative_keys",):
            initializer = keras.initializers.RandomNormal(stddev=self.head_dim**-0.5)
            setattr(self, name, self.add_table(name, shape, initializer))

    def terms(self, queries: Tensor, positions: Positions) -> ScoreTerms:
        """RK = a^K and RV = a^V over the query itself; their edge rows hold beyond."""
        check_heads("ShawEmbedding", self.num_heads, self.head_dim, queries)
        keys = OffsetTable(self.relative_keys.value, -self.left, "clamp")
        values = OffsetTable(self.relative_values.value, -self.left, "clamp") if self.values else None
        return ScoreTerms(relative_keys=keys, relative_values=values)

    def get_config(self) -> dict[str, Any]:
        """The arguments it was made with."""
        return {
            **super().get_config(),
            "head_dim": self.head_dim,
            "max_distance": (self.left, self.right),
            "num_heads": self.num_heads,
            "values": self.values,
        }
