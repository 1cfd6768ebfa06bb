"""RelativeEncoding: the contract of an encoding under Keras."""

from __future__ import annotations

from typing import Any, NamedTuple

from relattn.arguments import check_size
from relattn.keras.arrange import to_diagonals
from relattn.keras.installed import keras, ops
from relattn.keras.positions import Positions
from relattn.keras.table import OffsetTable
from relattn.keras.tensors import Index, Shape, Tensor, as_start, check_features, score_dtype, times_table


class ScoreTerms(NamedTuple):
    """S_ij = scale * (q_i . k_j + r_i . RK[d]) + b[d];  O_i = sum_j softmax(S)_ij * (v_j + RV[d]);  d = j - i.

    query: q, rewritten; None leaves the call's own. relative_query r [B, H, Lq, width] and relative_keys RK come
    together; relative_values RV; bias b. None: the equation lacks the term.
    """

    query: Tensor | None = None
    relative_query: Tensor | None = None
    relative_keys: OffsetTable | None = None
    relative_values: OffsetTable | None = None
    bias: OffsetTable | None = None


class RelativeEncoding(keras.layers.Layer):
    """A function from offsets to rows: what a position encoding adds to the score equation.

    An encoding writes `terms`, and `prepare_keys` where it changes keys by their own position. Everything that depends
    on the offset is computed once per offset, never once per pair.

    Call arguments:
        queries: Float tensor of shape `(B, H, Lq, head_size)`.
        key_length: Number of keys; as many as queries unless given.
        query_position, key_position: Position of the first query and of the first key, an int or a scalar integer
            tensor (for caches). Default to 0.

    Returns:
        What the encoding adds to the scores, of shape `(B, H, Lq, Lk)`: relative keys, to be scaled with the products
        of queries and keys, or, of shape `(1, H, Lq, Lk)`, a bias, which is not scaled.
    """

    def prepare_keys(self, keys: Tensor, key_position: Index) -> Tensor:
        """The keys `(B, H, Lk, head_size)` as attention multiplies them; unchanged unless overridden."""
        return keys

    def terms(self, queries: Tensor, positions: Positions) -> ScoreTerms:
        """The terms of the score equation for these queries."""
        raise NotImplementedError(f"{type(self).__name__}.terms: an encoding writes its own")

    def add_table(self, name: str, shape: tuple[int, ...], initializer: Any) -> Any:
        """A weight that keeps its own dtype under mixed precision: what it adds to scores is float32."""
        return self.add_weight(name=name, shape=shape, initializer=initializer, autocast=False)

    def call(
        self, queries: Tensor, key_length: Index | None = None, query_position: Index = 0, key_position: Index = 0
    ) -> Tensor:
        """S `(B, H, Lq, Lk)`, or `(1, H, Lq, Lk)` for a bias."""
        check_features("queries", queries, None, None)
        query_length = ops.shape(queries)[2]
        key_length = query_length if key_length is None else as_length(key_length)
        start, key_start = as_start("query_position", query_position), as_start("key_position", key_position)
        positions = Positions(start, key_start, query_length, key_length, highest=self.highest_offset)
        dtype = score_dtype(self.compute_dtype)
        terms = self.terms(ops.cast(queries, dtype), positions)
        span = positions.first, positions.count + 1  # with the column that `to_diagonals` does not read
        if terms.bias is not None:
            rows = ops.cast(terms.bias.rows(*span), dtype)[None, :, None, :]
            products = ops.broadcast_to(rows, (1, ops.shape(rows)[1], query_length, positions.count + 1))
        elif terms.relative_keys is not None:
            rows = ops.cast(terms.relative_keys.rows(*span), dtype)
            products = times_table(terms.relative_query, ops.swapaxes(rows, -1, -2))
        else:
            raise NotImplementedError(f"{type(self).__name__} adds nothing to scores; it has a call of its own")
        return ops.cast(to_diagonals(products, key_length), self.compute_dtype)

    highest_offset: int | None = None
    """The largest offset that has a row, where the encoding has an end there."""

    def compute_output_shape(self, queries_shape: Shape, key_length: int | None = None) -> Shape:
        """The shape of S."""
        batch, heads, query_length, _ = queries_shape
        return batch, heads, query_length, query_length if key_length is None else key_length

    def compute_output_spec(
        self, queries: Tensor, key_length: Index | None = None, query_position: Index = 0, key_position: Index = 0
    ) -> Any:
        """The shape and dtype of S, for functional models."""
        check_features("queries", queries, None, None)
        shape = self.compute_output_shape(queries.shape, key_length if isinstance(key_length, int) else None)
        if key_length is not None and not isinstance(key_length, int):
            shape = (*shape[:3], None)
        return keras.KerasTensor(shape, dtype=self.compute_dtype)


def as_length(key_length: Any) -> Index:
    """The number of keys as the caller gives it."""
    if hasattr(key_length, "shape"):
        return as_start("key_length", key_length)
    check_size("key_length", key_length)
    return key_length


def check_heads(encoding: str, num_heads: int | None, head_size: int | None, queries: Tensor) -> None:
    """The queries have the heads and the width that the encoding was made for."""
    check_features(f"{encoding} queries", queries, num_heads, head_size)
