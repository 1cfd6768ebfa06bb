"""T5Bias: a learned bias per bucket of offsets."""

from __future__ import annotations

from typing import Any

import numpy as np

from relattn.checks.values import check_buckets, check_size
from relattn.keras.encoding import RelativeEncoding, check_heads
from relattn.keras.installed import keras, ops
from relattn.keras.positions import Positions
from relattn.keras.table import OffsetTable
from relattn.keras.tensors import Shape, Tensor
from relattn.keras.terms import ScoreTerms
from relattn.positions.offsets import t5_buckets


@keras.saving.register_keras_serializable(package="relattn")
class T5Bias(RelativeEncoding):
    """S_ij = scale * q_i . k_j + b[bucket(d)], a learned number per bucket of offsets and head.

    Half of the buckets hold one distance each. The others hold ranges that widen logarithmically up to max_distance,
    and the last bucket holds everything beyond (`relattn.offsets.t5_buckets`). T5 models do not scale:
    `RelativeMultiHeadAttention(..., scale=1.0)`.

    Weights:
        bias: `(num_buckets, num_heads)`, as in T5's checkpoints.

    Call arguments: as in `RelativeEncoding`.

    Returns:
        The bias, of shape `(1, H, Lq, Lk)`.

    Reference: Raffel et al. 2020 (T5), section 2.1.
    """

    def __init__(
        self,
        num_heads: int,
        *,
        num_buckets: int = 32,
        max_distance: int = 128,
        bidirectional: bool = True,
        **kwargs: Any,
    ) -> None:
        """One number for each bucket and head.

        Args:
            num_heads: Number of heads.
            num_buckets: Number of buckets.
            max_distance: The distance from which on the last bucket holds.
            bidirectional: Whether the future has its own buckets; otherwise all of it falls into bucket 0.
        """
        super().__init__(**kwargs)
        self.num_heads = check_size("num_heads", num_heads)
        self.num_buckets, self.max_distance = check_buckets(num_buckets, max_distance, bidirectional)
        self.bidirectional = bidirectional

    def build(self, queries_shape: Any = None) -> None:
        """Makes the biases, drawn from N(0, 0.02^2)."""
        shape = (self.num_buckets, self.num_heads)
        self.bias = self.add_table("bias", shape, keras.initializers.RandomNormal(stddev=0.02))

    def terms(self, queries: Tensor, positions: Positions) -> ScoreTerms:
        """b[d] for |d| <= max_distance; further away the bucket no longer changes."""
        check_heads("T5Bias", self.num_heads, None, queries)
        buckets = t5_buckets(
            np.arange(-self.max_distance, self.max_distance + 1),
            num_buckets=self.num_buckets,
            max_distance=self.max_distance,
            bidirectional=self.bidirectional,
        )
        rows = ops.transpose(ops.take(self.bias.value, buckets, axis=0))
        return ScoreTerms(bias=OffsetTable(rows, -self.max_distance, "clamp"))

    def compute_output_shape(self, queries_shape: Shape, key_length: int | None = None) -> Shape:
        """The shape of the bias."""
        return 1, *super().compute_output_shape(queries_shape, key_length)[1:]

    def get_config(self) -> dict[str, Any]:
        """The arguments it was made with."""
        return {
            **super().get_config(),
            "num_heads": self.num_heads,
            "num_buckets": self.num_buckets,
            "max_distance": self.max_distance,
            "bidirectional": self.bidirectional,
        }
