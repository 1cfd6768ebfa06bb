"""AlibiBias: a penalty linear in the distance."""

from __future__ import annotations

from typing import Any

from relattn.arguments import check_size
from relattn.keras.encoding import RelativeEncoding, ScoreTerms, check_heads
from relattn.keras.installed import keras, ops
from relattn.keras.positions import Positions
from relattn.keras.table import OffsetTable
from relattn.keras.tensors import Shape, Tensor
from relattn.offsets import alibi_slopes


@keras.saving.register_keras_serializable(package="relattn")
class AlibiBias(RelativeEncoding):
    """-slope_h * |d| is added to the scaled scores: no weights, a slope per head, symmetric in both directions.

    Args:
        num_heads: Number of heads; slopes are those of `relattn.offsets.alibi_slopes`, for any number.

    Call arguments: as in `RelativePositionalEmbedding`.

    Returns:
        The bias, of shape `(1, H, Lq, Lk)`.

    Reference: Press et al. 2022 (ALiBi), section 3.
    """

    def __init__(self, num_heads: int, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        check_size("num_heads", num_heads)
        self.num_heads = num_heads

    def build(self, queries_shape: Any = None) -> None:
        """There is nothing to make."""

    def terms(self, queries: Tensor, positions: Positions) -> ScoreTerms:
        """b[d] = -slope_h * |d|, for every offset of the call."""
        check_heads("AlibiBias", self.num_heads, None, queries)
        slopes = ops.convert_to_tensor(alibi_slopes(self.num_heads), dtype=queries.dtype)
        distances = ops.cast(ops.abs(positions.offsets()), queries.dtype)
        return ScoreTerms(bias=OffsetTable(-slopes[:, None] * distances, positions.first))

    def compute_output_shape(self, queries_shape: Shape, key_length: int | None = None) -> Shape:
        """The shape of the bias."""
        return 1, *super().compute_output_shape(queries_shape, key_length)[1:]

    def get_config(self) -> dict[str, Any]:
        """The arguments it was made with."""
        return {**super().get_config(), "num_heads": self.num_heads}
