"""The two layers of the article behind the generalised algorithm, under its names, with its shapes and its one weight.

    S[i, j] = q_i . projection[:, sequence_length - 1 + i - j]
    Attention(K, V, Q) = softmax((Q K^T + S) / sqrt(head_size)) V

Source: I. Ukhov 2024, relative positional embedding generalised to cross-attention. His steps for S: take Q times
projection, stack its diagonals 0 .. sequence_length - 1 from the highest to the lowest, and transpose.
"""

from __future__ import annotations

from typing import Any

from relattn.checks.values import check_probability, check_size
from relattn.errors import ShapeError
from relattn.keras.attend import Mask
from relattn.keras.installed import keras, ops
from relattn.keras.loop import attend
from relattn.keras.masks import as_length_mask, as_pair_mask
from relattn.keras.padding import seen, with_zeros
from relattn.keras.positions import Positions
from relattn.keras.scores import added_alone
from relattn.keras.table import OffsetTable
from relattn.keras.tensors import Index, Shape, Tensor, check_features, is_known, score_dtype
from relattn.keras.terms import ScoreTerms


@keras.saving.register_keras_serializable(package="relattn")
class RelativePositionalEmbedding(keras.layers.Layer):
    """S[i, j] = q_i . projection[:, sequence_length - 1 + i - j], for every query i and j = 0 .. sequence_length - 1.

    Weights:
        projection: Of shape `(head_size, 2 * sequence_length - 1)`, Glorot uniform at first. Column 0 belongs to the
            most distant future.

    Call arguments:
        query: Q, a float tensor of shape `(B, H, Lq, head_size)`, Lq from 1 to `sequence_length`.

    Returns:
        S of shape `(B, H, Lq, sequence_length)`.

    Raises ShapeError: for another shape; ValueError: for more queries than `sequence_length`. If their number is only
    known when the graph runs (`tf.function`), S is NaN instead.
    """

    def __init__(self, head_size: int, sequence_length: int, **kwargs: Any) -> None:
        """One column for each offset.

        Args:
            head_size: Width of a head.
            sequence_length: The most queries, and the most keys.
        """
        super().__init__(**kwargs)
        self.head_size = check_size("head_size", head_size)
        self.sequence_length = check_size("sequence_length", sequence_length)

    def build(self, query_shape: Any = None) -> None:
        """Makes the projection."""
        self.projection = self.add_weight(
            name="projection",
            shape=(self.head_size, 2 * self.sequence_length - 1),
            initializer="glorot_uniform",
            autocast=False,  # under mixed precision the numbers added to scores are float32
        )

    def call(self, query: Tensor) -> Tensor:
        """S `(B, H, Lq, sequence_length)`."""
        self.check_length("query", query)
        positions = Positions(0, 0, ops.shape(query)[2], self.sequence_length)
        query = ops.cast(query, score_dtype(self.compute_dtype))
        return ops.cast(added_alone(query, self.terms(), positions), self.compute_dtype)

    def terms(self) -> ScoreTerms:
        """The projection as relative keys: its columns are rows, in descending offset."""
        return ScoreTerms(
            relative_keys=OffsetTable(ops.transpose(ops.flip(self.projection.value, axis=1))[None], self._first)
        )

    @property
    def _first(self) -> int:
        return 1 - self.sequence_length

    def check_length(self, name: str, features: Tensor) -> Index:
        """[batch, heads, 1 .. sequence_length, head_size]; the length, an int where it is known."""
        check_features(name, features, None, self.head_size)
        length = ops.shape(features)[2]
        if is_known(length) and not 1 <= length <= self.sequence_length:
            raise ValueError(
                f"{name}: got length {length}; expected 1 to {self.sequence_length}, the sequence_length; make the "
                "layer with a larger one"
            )
        return length

    def compute_output_shape(self, query_shape: Shape) -> Shape:
        """The shape of S."""
        return *query_shape[:3], self.sequence_length

    def get_config(self) -> dict[str, Any]:
        """The arguments it was made with."""
        return {**super().get_config(), "head_size": self.head_size, "sequence_length": self.sequence_length}

    @classmethod
    def from_config(cls, config: dict[str, Any]) -> RelativePositionalEmbedding:
        """The layer that `get_config` describes.

        Raises ValueError: for a config of the layer that had this name in relattn 0.1; it is now RelativeEmbedding.
        """
        if "num_heads" in config or "causal" in config:
            size, length = config.get("head_size"), config.get("sequence_length")
            heads, causal = config.get("num_heads"), config.get("causal", False)
            raise ValueError(
                f"RelativePositionalEmbedding: got a config with num_heads={heads!r} and causal={causal!r}, of an "
                "older relattn whose layer of this name is RelativeEmbedding now; make the model anew with "
                f"RelativeEmbedding({size}, {length}, num_heads={heads!r}, causal={causal!r}) and take the weights "
                "from the file with model.load_weights"
            )
        return cls(**config)


@keras.saving.register_keras_serializable(package="relattn")
class Attention(keras.layers.Layer):
    """softmax((Q K^T + S) / sqrt(head_size)) V, S the first Lk columns of `RelativePositionalEmbedding(Q)`.

    Long sequences are computed in blocks of queries. Each block is computed again for its gradient, as in
    `RelativeMultiHeadAttention`. A training step holds O(block * Lk) scores per head, not O(Lq * Lk).

    Weights:
        embedding.projection: The weight of `RelativePositionalEmbedding`; there is no other.

    Call arguments:
        key, value, query: K `(B, H, Lk, head_size)`, V `(B, H, Lk, any width)`, Q `(B, H, Lq, head_size)`, in this
            order; Lk and Lq from 1 to `sequence_length`.
        key_mask: Boolean `(B, Lk)`; True where a key takes part.
        attention_mask: Boolean `(Lq, Lk)`, `(B, Lq, Lk)` or `(B, H, Lq, Lk)`; True where a pair attends. A query that
            may attend to nothing gives 0. The content of a key or query that a mask hides from all never matters, not
            even NaN.
        use_causal_mask: Whether query i attends to keys j <= i only.
        training: Whether weights are dropped.

    Returns:
        The output `(B, H, Lq, width of V)`.

    Raises ShapeError: for other shapes; ValueError: for more queries or keys than `sequence_length`. If their number is
    only known when the graph runs (`tf.function`), the output is NaN instead.
    """

    def __init__(
        self, head_size: int, sequence_length: int, dropout: float = 0.0, seed: int | None = None, **kwargs: Any
    ) -> None:
        """One table, and weights that may be dropped.

        Args:
            head_size: Width of a head.
            sequence_length: The most queries, and the most keys.
            dropout: Rate at which weights are dropped in training.
            seed: The seed of dropout.
        """
        super().__init__(**kwargs)
        check_probability("dropout", dropout)
        self.embedding = RelativePositionalEmbedding(head_size, sequence_length, dtype=self.dtype_policy)
        self.dropout, self.seed = dropout, seed
        self._seeds = keras.random.SeedGenerator(seed) if dropout > 0.0 else None

    def build(self, key_shape: Any = None, value_shape: Any = None, query_shape: Any = None) -> None:
        """Makes the projection."""
        self.embedding.build(query_shape)

    def call(
        self,
        key: Tensor,
        value: Tensor,
        query: Tensor,
        key_mask: Tensor | None = None,
        attention_mask: Tensor | None = None,
        use_causal_mask: bool = False,
        training: bool | None = None,
    ) -> Tensor:
        """The output `(B, H, Lq, width of V)`."""
        query_length, key_length = self.embedding.check_length("query", query), self.embedding.check_length("key", key)
        _check_alike(key, value, query)
        shape = (query.shape[0], query.shape[1], query.shape[2], key.shape[2])
        mask = Mask(
            keys=as_length_mask("key_mask", key_mask, shape[0], shape[3]), pairs=as_pair_mask(attention_mask, shape)
        )
        dtype = score_dtype(self.compute_dtype)
        positions = Positions(0, 0, query_length, key_length, highest=0 if use_causal_mask else None)
        queries, keys = seen(mask, positions)
        sides = (query, queries), (key, keys), (value, keys)
        query, key, value = (with_zeros(ops.cast(rows, dtype), side) for rows, side in sides)
        output, _ = attend(
            query,
            key,
            value,
            self.embedding.terms(),
            positions,
            mask,
            scale=self.embedding.head_size**-0.5,
            dropout=self.dropout,
            seed=self._seeds.next() if training and self._seeds is not None else None,
            block=None,
            return_weights=False,
        )
        return ops.cast(output, self.compute_dtype)

    def compute_output_spec(self, key: Tensor, value: Tensor, query: Tensor, *masks: Any, **options: Any) -> Any:
        """The shape and dtype of the output, for functional models."""
        self.embedding.check_length("query", query)
        self.embedding.check_length("key", key)
        _check_alike(key, value, query)
        return keras.KerasTensor((*query.shape[:3], value.shape[3]), dtype=self.compute_dtype)

    def get_config(self) -> dict[str, Any]:
        """The arguments it was made with."""
        return {
            **super().get_config(),
            "head_size": self.embedding.head_size,
            "sequence_length": self.embedding.sequence_length,
            "dropout": self.dropout,
            "seed": self.seed,
        }


def _check_alike(key: Tensor, value: Tensor, query: Tensor) -> None:
    """The same batch and number of heads in all three, and one value per key."""
    check_features("value", value, None, None)
    shapes = [list(x.shape) for x in (key, value, query)]
    same = [tuple(key.shape[:3]), tuple(value.shape[:3]), (*query.shape[:2], key.shape[2])]
    if any(len({size for size in sizes if size is not None}) > 1 for sizes in zip(*same, strict=True)):
        raise ShapeError(
            f"key, value, query: got shapes {shapes[0]}, {shapes[1]} and {shapes[2]}; expected one batch, as many "
            "heads in all three, and a value per key"
        )
