"""TransformerXLRelativeEmbedding: content and position biases with projected sinusoids."""

from __future__ import annotations

from typing import Any

from relattn.arguments import check_flag, check_size
from relattn.keras.encoding import RelativeEncoding, ScoreTerms, check_heads
from relattn.keras.installed import keras, ops
from relattn.keras.positions import Positions
from relattn.keras.table import OffsetTable
from relattn.keras.tensors import Index, Tensor
from relattn.keras.waves import cos_sin
from relattn.offsets import inverse_frequencies


@keras.saving.register_keras_serializable(package="relattn")
class TransformerXLRelativeEmbedding(RelativeEncoding):
    """S_ij = (q_i + v) . W R[i - j], and queries meet keys as (q_i + u) . k_j.

    R[p]: sinusoids of the distance p = query position - key position, of any length, projected by W per head; with
    `sequence_length`, W R[p] is a table of learned rows instead.

    Args:
        num_heads: Number of heads.
        head_size: Width of a head.
        embed_dim: Width of R, even; `num_heads * head_size` unless given.
        interleaved: Whether R has sine and cosine of each frequency side by side (ESPnet); otherwise all sines, then
            all cosines (Dai et al.'s code).
        sequence_length: `None` for sinusoids; otherwise how far a learned table reaches.

    Weights:
        linear_pos: W, of shape `(num_heads * head_size, embed_dim)`; absent with a learned table.
        pos_bias_u, pos_bias_v: u and v, each `(num_heads, head_size)`, zero at first.
        relative_keys: The learned table, `(num_heads, 2 * sequence_length - 1, head_size)`; row 0 belongs to the most
            distant past.

    Call arguments and what is returned: as in `RelativePositionalEmbedding`; u works inside of
    `RelativeMultiHeadAttention`.

    Reference: Dai et al. 2019 (Transformer-XL), section 3.3.
    """

    def __init__(
        self,
        num_heads: int,
        head_size: int,
        embed_dim: int | None = None,
        interleaved: bool = False,
        sequence_length: int | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        check_size("num_heads", num_heads)
        check_size("head_size", head_size)
        check_flag("interleaved", interleaved)
        if sequence_length is not None:
            check_size("sequence_length", sequence_length)
            if embed_dim is not None or interleaved:
                raise ValueError(
                    f"sequence_length: got {sequence_length} beside embed_dim={embed_dim}, interleaved={interleaved}; "
                    "a learned table has no sinusoids, leave those out or sequence_length"
                )
        width = num_heads * head_size if embed_dim is None else embed_dim
        if sequence_length is None:
            check_size("embed_dim", width, least=2)
            if width % 2:
                raise ValueError(
                    f"embed_dim: got {width}; expected an even width, a sine and a cosine for each frequency"
                )
        self.num_heads, self.head_size, self.embed_dim = num_heads, head_size, embed_dim
        self.interleaved, self.sequence_length = interleaved, sequence_length

    def build(self, queries_shape: Any = None) -> None:
        """Makes u = v = 0, and W as torch initialises a Linear, or learned rows from N(0, 1 / head_size)."""
        rows = (self.num_heads, self.head_size)
        self.pos_bias_u = self.add_table("pos_bias_u", rows, "zeros")
        self.pos_bias_v = self.add_table("pos_bias_v", rows, "zeros")
        if self.sequence_length is not None:
            shape = (self.num_heads, 2 * self.sequence_length - 1, self.head_size)
            initializer = keras.initializers.RandomNormal(stddev=self.head_size**-0.5)
            self.relative_keys = self.add_table("relative_keys", shape, initializer)
        else:
            bound = self.width**-0.5
            initializer = keras.initializers.RandomUniform(-bound, bound)
            self.linear_pos = self.add_table("linear_pos", (self.num_heads * self.head_size, self.width), initializer)

    @property
    def width(self) -> int:
        """The width of R."""
        return self.num_heads * self.head_size if self.embed_dim is None else self.embed_dim

    def terms(self, queries: Tensor, positions: Positions) -> ScoreTerms:
        """q := q + u, r := q + v, RK = W R."""
        check_heads("TransformerXLRelativeEmbedding", self.num_heads, self.head_size, queries)
        u, v = (ops.cast(bias.value, queries.dtype)[:, None] for bias in (self.pos_bias_u, self.pos_bias_v))
        relative_query = queries + v
        if self.sequence_length is None:
            table = OffsetTable(self._projected_sinusoids(positions, queries.dtype), positions.first)
        else:
            reach = self.sequence_length - 1
            nothing = positions.unless_beyond(-reach, reach, self._beyond)
            if not isinstance(nothing, float):
                relative_query = relative_query + ops.cast(nothing, queries.dtype)
            table = OffsetTable(self.relative_keys.value, -reach)
        return ScoreTerms(query=queries + u, relative_query=relative_query, relative_keys=table)

    def _projected_sinusoids(self, positions: Positions, dtype: Any) -> Tensor:
        """W R[-d] for every offset d of the call: [num_heads, Lq + Lk - 1, head_size]."""
        dtype = keras.backend.standardize_dtype(dtype)
        cos, sin = cos_sin(-positions.offsets(), inverse_frequencies(self.width), dtype)
        if self.interleaved:
            sinusoids = ops.reshape(ops.stack([sin, cos], axis=-1), (-1, self.width))
        else:
            sinusoids = ops.concatenate([sin, cos], axis=-1)
        rows = sinusoids @ ops.transpose(ops.cast(self.linear_pos.value, dtype))
        return ops.transpose(ops.reshape(rows, (-1, self.num_heads, self.head_size)), (1, 0, 2))

    def _beyond(self, smallest: Index, largest: Index) -> str:
        reach = self.sequence_length - 1  # pyright: ignore[reportOptionalOperand]
        return (
            f"TransformerXLRelativeEmbedding sequence_length: the offsets {smallest}..{largest} are visible and "
            f"sequence_length={self.sequence_length} reaches {-reach}..{reach}; make it with a larger sequence_length, "
            "or without, for sinusoids"
        )

    def get_config(self) -> dict[str, Any]:
        """The arguments it was made with."""
        return {
            **super().get_config(),
            "num_heads": self.num_heads,
            "head_size": self.head_size,
            "embed_dim": self.embed_dim,
            "interleaved": self.interleaved,
            "sequence_length": self.sequence_length,
        }
