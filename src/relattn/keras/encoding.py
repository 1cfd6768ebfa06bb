"""RelativeEncoding: the contract of an encoding under Keras, and the sum of encodings."""

from __future__ import annotations

from dataclasses import replace
from functools import reduce
from operator import add
from typing import Any

from relattn.checks.values import kind_of
from relattn.errors import UnsupportedError
from relattn.keras.installed import keras, ops
from relattn.keras.positions import Positions
from relattn.keras.scores import added_alone
from relattn.keras.tensors import (
    Index,
    Place,
    Shape,
    Tensor,
    as_length,
    as_place,
    check_features,
    is_explicit,
    score_dtype,
)
from relattn.keras.terms import ScoreTerms


class RelativeEncoding(keras.layers.Layer):
    """A function from offsets to rows: what a position encoding adds to the score equation.

    An encoding writes `terms`, and `prepare_keys` where it changes keys by their own position. Everything that depends
    on the offset is computed once per offset, never once per pair. Encodings add with `+`; at most one operand may
    rewrite queries and keys.

    Args:
        activity_regularizer, trainable, dtype, autocast, name: As in `keras.layers.Layer`.

    Call arguments:
        queries: Float tensor of shape `(B, H, Lq, head_dim)`.
        key_length: Number of keys; by default as many as queries.
        query_position, key_position: Position of the first query and of the first key, an int or a scalar integer
            tensor (for caches); or the position of every one, an integer tensor `(L,)` or `(B, L)`. Default to 0.

    Returns:
        What the encoding adds to the scores. Relative keys have the shape `(B, H, Lq, Lk)` and are scaled with the
        products of queries and keys. A bias has the shape `(1, H, Lq, Lk)` and is not scaled. Encodings that need more
        than queries (sums, relative queries) raise UnsupportedError: they work only inside
        `RelativeMultiHeadAttention`.
    """

    def prepare_keys(self, keys: Tensor, key_position: Place) -> Tensor:
        """The keys `(B, H, Lk, head_dim)` as attention multiplies them; unchanged unless overridden."""
        return keys

    @property
    def rewrites_keys(self) -> bool:
        """Whether it has its own `prepare_keys`: then a sum cannot multiply relative queries with those keys."""
        return type(self).prepare_keys is not RelativeEncoding.prepare_keys

    def terms(self, queries: Tensor, positions: Positions) -> ScoreTerms:
        """The terms of the score equation for these queries."""
        raise NotImplementedError(f"{type(self).__name__}.terms: an encoding writes its own")

    def __add__(self, other: RelativeEncoding) -> EncodingSum:
        if not isinstance(other, RelativeEncoding):
            raise TypeError(f"sum of encodings: got {kind_of(other)}; expected a layer of relattn.keras")
        return EncodingSum(self, other)

    __radd__ = __add__

    def add_table(self, name: str, shape: tuple[int, ...], initializer: Any) -> Any:
        """A weight that keeps its own dtype under mixed precision: the numbers added to scores are float32."""
        return self.add_weight(name=name, shape=shape, initializer=initializer, autocast=False)

    def call(
        self, queries: Tensor, key_length: Index | None = None, query_position: Place = 0, key_position: Place = 0
    ) -> Tensor:
        """S `(B, H, Lq, Lk)`, or `(1, H, Lq, Lk)` for a bias."""
        positions = self.positions_of(queries, key_length, query_position, key_position)
        queries = ops.cast(queries, score_dtype(self.compute_dtype))
        return ops.cast(added_alone(queries, self.terms(queries, positions), positions), self.compute_dtype)

    def positions_of(
        self, queries: Tensor, key_length: Index | None, query_position: Place, key_position: Place
    ) -> Positions:
        """The positions of a call of the encoding by itself."""
        check_features("queries", queries, None, None)
        batch, _, length, _ = queries.shape
        query_length = ops.shape(queries)[2]
        key_length = query_length if key_length is None else as_length(key_length)
        start = as_place("query_position", query_position, length, batch)
        keys = key_length if isinstance(key_length, int) else None
        return Positions(start, as_place("key_position", key_position, keys, batch), query_length, key_length)

    def compute_output_shape(self, queries_shape: Shape, key_length: int | None = None) -> Shape:
        """The shape of S."""
        batch, heads, query_length, _ = queries_shape
        return batch, heads, query_length, query_length if key_length is None else key_length

    def compute_output_spec(
        self, queries: Tensor, key_length: Index | None = None, query_position: Place = 0, key_position: Place = 0
    ) -> Any:
        """The shape and dtype of S, for functional models."""
        check_features("queries", queries, None, None)
        shape = self.compute_output_shape(queries.shape, key_length if isinstance(key_length, int) else None)
        if key_length is not None and not isinstance(key_length, int):
            shape = (*shape[:3], None)
        if any(is_explicit(place) and len(place.shape) == 2 for place in (query_position, key_position)):
            shape = (queries.shape[0], *shape[1:])
        return keras.KerasTensor(shape, dtype=self.compute_dtype)


@keras.saving.register_keras_serializable(package="relattn")
class EncodingSum(RelativeEncoding):
    """a + b: the terms of both, in one score equation.

    Raises UnsupportedError: where two operands rewrite queries or keys, or a rotation stands beside relative queries,
    because no paper defines what that means.
    """

    def __init__(self, *encodings: RelativeEncoding, **kwargs: Any) -> None:
        """The sum of these.

        encodings: the operands; those of a sum among them one by one.
        """
        super().__init__(**kwargs)
        operands: list[RelativeEncoding] = []
        for encoding in encodings:
            operands.extend(encoding.operands if isinstance(encoding, EncodingSum) else [encoding])
        if [operand.rewrites_keys for operand in operands].count(True) > 1:
            raise UnsupportedError(
                "sum of encodings: two operands rotate the queries and keys; no paper defines that, keep one of them"
            )
        self.operands = operands

    def build(self, queries_shape: Any = None) -> None:
        """Makes the weights of the operands."""
        for operand in self.operands:
            if not operand.built:
                operand.build(queries_shape)

    @property
    def rewrites_keys(self) -> bool:
        """Whether an operand has its own `prepare_keys`."""
        return any(operand.rewrites_keys for operand in self.operands)

    def prepare_keys(self, keys: Tensor, key_position: Place) -> Tensor:
        """The keys after the one operand that changes them."""
        for operand in self.operands:
            keys = operand.prepare_keys(keys, key_position)
        return keys

    def terms(self, queries: Tensor, positions: Positions) -> ScoreTerms:
        """The sum of every operand's terms; each sees the query as the caller gave it."""
        parts = [operand.terms(queries, positions) for operand in self.operands]
        if any(part.relative_query is not None for part in parts):
            parts = [
                replace(part, relative_query=queries)
                if part.relative_keys is not None and part.relative_query is None
                else part
                for part in parts
            ]
        combined = reduce(add, parts)
        if self.rewrites_keys and combined.relative_queries is not None:
            raise UnsupportedError(
                "sum of encodings: a rotation and relative queries; the relative queries would meet rotated keys, "
                "which no paper defines"
            )
        return combined

    def get_config(self) -> dict[str, Any]:
        """Its operands."""
        return {**super().get_config(), "operands": list(map(keras.saving.serialize_keras_object, self.operands))}

    @classmethod
    def from_config(cls, config: dict[str, Any]) -> EncodingSum:
        """The sum that `get_config` describes."""
        operands = map(keras.saving.deserialize_keras_object, config["operands"])
        return cls(*operands, **{name: value for name, value in config.items() if name != "operands"})


def check_heads(encoding: str, num_heads: int | None, head_dim: int | None, queries: Tensor) -> None:
    """The queries have the heads and the width that the encoding was made for."""
    check_features(f"{encoding} queries", queries, num_heads, head_dim)
