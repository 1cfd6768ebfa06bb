"""AlibiBias: a penalty linear in the distance."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from relattn.checks.values import check_flag, check_size, check_slopes
from relattn.keras.encoding import RelativeEncoding, check_heads
from relattn.keras.installed import keras, ops
from relattn.keras.positions import Positions
from relattn.keras.table import ComputedTable
from relattn.keras.tensors import Shape, Tensor
from relattn.keras.terms import ScoreTerms
from relattn.positions.offsets import alibi_slopes


@keras.saving.register_keras_serializable(package="relattn")
class AlibiBias(RelativeEncoding):
    """S_ij = scale * q_i . k_j - slope_h * |d|; with signed=True + slope_h * d, so that the future gains.

    Weights:
        slopes: Of shape `(num_heads,)`, where `learned`.

    Call arguments: as in `RelativeEncoding`.

    Returns:
        The bias, of shape `(1, H, Lq, Lk)`.

    Reference: Press et al. 2022 (ALiBi), section 3.
    """

    def __init__(
        self,
        num_heads: int,
        slopes: Sequence[float] | None = None,
        learned: bool = False,
        signed: bool = False,
        **kwargs: Any,
    ) -> None:
        """One slope for each head.

        Args:
            num_heads: Number of heads.
            slopes: `num_heads` numbers above 0; those of `relattn.offsets.alibi_slopes` by default.
            learned: Whether the slopes are a weight that is trained.
            signed: Whether d itself is multiplied, in place of -|d|.
        """
        super().__init__(**kwargs)
        self.num_heads = check_size("num_heads", num_heads)
        check_flag("learned", learned)
        check_flag("signed", signed)
        self.learned, self.signed = learned, signed
        self.given_slopes = None if slopes is None else check_slopes(slopes, self.num_heads)

    def build(self, queries_shape: Any = None) -> None:
        """Makes the slopes if they are learned."""
        if self.learned:
            initializer: Any = keras.initializers.Constant(self.first_slopes())  # pyright: ignore[reportArgumentType]
            self.slopes = self.add_table("slopes", (self.num_heads,), initializer)

    def first_slopes(self) -> np.ndarray:
        """slope_h of every head, before training."""
        return alibi_slopes(self.num_heads) if self.given_slopes is None else np.array(self.given_slopes)

    def terms(self, queries: Tensor, positions: Positions) -> ScoreTerms:
        """b[d] = -slope_h * |d|, or slope_h * d."""
        check_heads("AlibiBias", self.num_heads, None, queries)
        if self.learned:
            slopes = ops.cast(self.slopes.value, queries.dtype)
        else:
            slopes = ops.convert_to_tensor(self.first_slopes(), dtype=queries.dtype)

        def bias(offsets: Tensor) -> Tensor:
            steps = offsets if self.signed else -ops.abs(offsets)
            return slopes[:, None] * ops.cast(steps, queries.dtype)

        return ScoreTerms(bias=ComputedTable(bias))

    def compute_output_shape(self, queries_shape: Shape, key_length: int | None = None) -> Shape:
        """The shape of the bias."""
        return 1, *super().compute_output_shape(queries_shape, key_length)[1:]

    def get_config(self) -> dict[str, Any]:
        """The arguments it was made with."""
        return {
            **super().get_config(),
            "num_heads": self.num_heads,
            "slopes": None if self.given_slopes is None else list(self.given_slopes),
            "learned": self.learned,
            "signed": self.signed,
        }
