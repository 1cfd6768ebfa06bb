"""TransformerXLEmbedding: content and position biases with projected sinusoids."""

from __future__ import annotations

from typing import Any

from relattn.checks.values import check_flag, check_size
from relattn.keras.encoding import RelativeEncoding, check_heads
from relattn.keras.installed import keras, ops
from relattn.keras.positions import Positions
from relattn.keras.table import ComputedTable, OffsetTable
from relattn.keras.tensors import Tensor
from relattn.keras.terms import ScoreTerms
from relattn.keras.waves import cos_sin
from relattn.positions.offsets import inverse_frequencies


@keras.saving.register_keras_serializable(package="relattn")
class TransformerXLEmbedding(RelativeEncoding):
    """S_ij = scale * ((q_i + u) . k_j + (q_i + v) . W R[i - j]).

    R[p]: sinusoids of the distance p = query position - key position, of any length, projected by W per head; with
    `max_length`, W R[p] is a table of learned rows instead.

    Weights:
        linear_pos_weight: W, of shape `(num_heads * head_dim, embed_dim)`; absent with a learned table.
        pos_bias_u, pos_bias_v: u and v, each `(num_heads, head_dim)`, zero at first.
        relative_keys: The learned table, `(num_heads, 2 * max_length - 1, head_dim)`; row 0 belongs to the most
            distant past.

    Call arguments and the answer: as in `RelativeEncoding`; u works only inside `RelativeMultiHeadAttention`.

    Reference: Dai et al. 2019 (Transformer-XL), section 3.3.
    """

    def __init__(
        self,
        num_heads: int,
        head_dim: int,
        *,
        embed_dim: int | None = None,
        interleaved: bool = False,
        max_length: int | None = None,
        **kwargs: Any,
    ) -> None:
        """Two vectors for each head, beside projected sinusoids or a learned table.

        Args:
            num_heads: Number of heads.
            head_dim: Width of a head.
            embed_dim: Width of R, even; `num_heads * head_dim` by default.
            interleaved: Whether R has sine and cosine of each frequency side by side (ESPnet); otherwise all sines,
                then all cosines (Dai et al.'s code).
            max_length: `None` for sinusoids; otherwise how far a learned table reaches.
        """
        super().__init__(**kwargs)
        self.num_heads = check_size("num_heads", num_heads)
        self.head_dim = check_size("head_dim", head_dim)
        check_flag("interleaved", interleaved)
        if max_length is not None:
            max_length = check_size("max_length", max_length)
            if embed_dim is not None or interleaved:
                raise ValueError(
                    f"max_length: got {max_length} beside embed_dim={embed_dim}, interleaved={interleaved}; "
                    "a learned table has no sinusoids, leave those out or max_length"
                )
        self.embed_dim = None if embed_dim is None else check_size("embed_dim", embed_dim)
        self.interleaved, self.max_length = interleaved, max_length
        if max_length is None and self.width % 2:
            raise ValueError(
                f"embed_dim: got {self.width}; expected an even width, a sine and a cosine for each frequency"
            )

    def build(self, queries_shape: Any = None) -> None:
        """Makes u = v = 0, and W as torch initialises a Linear, or learned rows from N(0, 1 / head_dim)."""
        rows = (self.num_heads, self.head_dim)
        self.pos_bias_u = self.add_table("pos_bias_u", rows, "zeros")
        self.pos_bias_v = self.add_table("pos_bias_v", rows, "zeros")
        if self.max_length is not None:
            shape = (self.num_heads, 2 * self.max_length - 1, self.head_dim)
            initializer = keras.initializers.RandomNormal(stddev=self.head_dim**-0.5)
            self.relative_keys = self.add_table("relative_keys", shape, initializer)
        else:
            bound = self.width**-0.5
            initializer = keras.initializers.RandomUniform(-bound, bound)
            self.linear_pos_weight = self.add_table(
                "linear_pos_weight", (self.num_heads * self.head_dim, self.width), initializer
            )

    @property
    def width(self) -> int:
        """The width of R."""
        return self.num_heads * self.head_dim if self.embed_dim is None else self.embed_dim

    def terms(self, queries: Tensor, positions: Positions) -> ScoreTerms:
        """q := q + u, r := q + v, RK = W R."""
        check_heads("TransformerXLEmbedding", self.num_heads, self.head_dim, queries)
        u, v = (ops.cast(bias.value, queries.dtype)[:, None] for bias in (self.pos_bias_u, self.pos_bias_v))
        if self.max_length is None:
            table = ComputedTable(lambda offsets: self._projected_sinusoids(offsets, queries.dtype))
        else:
            reach = self.max_length - 1
            positions.check_within(-reach, reach, self._beyond)
            table = OffsetTable(self.relative_keys.value, -reach)
        return ScoreTerms(query=queries + u, relative_query=queries + v, relative_keys=table)

    def _projected_sinusoids(self, offsets: Tensor, dtype: Any) -> Tensor:
        """W R[-d] of every offset d: int32 [n] -> [num_heads, n, head_dim]."""
        dtype = keras.backend.standardize_dtype(dtype)
        cos, sin = cos_sin(-offsets, inverse_frequencies(self.width), dtype)
        if self.interleaved:
            sinusoids = ops.reshape(ops.stack([sin, cos], axis=-1), (-1, self.width))
        else:
            sinusoids = ops.concatenate([sin, cos], axis=-1)
        rows = sinusoids @ ops.transpose(ops.cast(self.linear_pos_weight.value, dtype))
        return ops.transpose(ops.reshape(rows, (-1, self.num_heads, self.head_dim)), (1, 0, 2))

    def _beyond(self, smallest: int, largest: int) -> str:
        reach = self.max_length - 1  # pyright: ignore[reportOptionalOperand]
        return (
            f"TransformerXLEmbedding max_length: the offsets {smallest}..{largest} are visible and "
            f"max_length={self.max_length} reaches {-reach}..{reach}; make it with a larger max_length, "
            "or without, for sinusoids"
        )

    def get_config(self) -> dict[str, Any]:
        """The arguments it was made with."""
        return {
            **super().get_config(),
            "num_heads": self.num_heads,
            "head_dim": self.head_dim,
            "embed_dim": self.embed_dim,
            "interleaved": self.interleaved,
            "max_length": self.max_length,
        }
