"""RelativeMultiHeadAttention: keras.layers.MultiHeadAttention with any relative encoding."""

from __future__ import annotations

from typing import Any, NamedTuple

from relattn.checks.values import check_scale, check_size, kind_of
from relattn.errors import ShapeError
from relattn.keras.attend import Mask
from relattn.keras.encoding import RelativeEncoding
from relattn.keras.installed import keras, ops
from relattn.keras.loop import attend
from relattn.keras.masks import as_length_mask, as_pair_mask
from relattn.keras.padding import seen, with_zeros
from relattn.keras.positions import Positions
from relattn.keras.tensors import Place, Shape, Tensor, as_place, score_dtype
from relattn.keras.terms import ScoreTerms


class _Call(NamedTuple):
    """The positions and masks of a call; it goes through Keras' own `call` in place of the attention mask."""

    positions: Positions
    mask: Mask


_ONLY_CAUSAL = object()
"""Stands in place of an attention mask: there is only causality, so Keras' own kernels need no mask."""


@keras.saving.register_keras_serializable(package="relattn")
class RelativeMultiHeadAttention(keras.layers.MultiHeadAttention):
    """`keras.layers.MultiHeadAttention` with a relative encoding in every head.

        S_ij = scale * (q_i . k_j + r_i . RK[d] + RQ[d] . k_j) + b[d],   d = j - i
        O_i  = sum_j softmax(S)_ij * (v_j + RV[d])

    A drop-in replacement: the arguments, weights and call are those of `keras.layers.MultiHeadAttention`. With
    `encoding=None` the numbers are the same, too.

    Call arguments:
        query: Tensor of shape `(B, Lq, dim)`.
        value: Tensor of shape `(B, Lk, dim)`.
        key: Tensor of shape `(B, Lk, dim)`; `value` by default.
        query_mask, value_mask, key_mask, attention_mask, return_attention_scores, training, use_causal_mask: as in
            `keras.layers.MultiHeadAttention`; masks that Keras propagates are used, too.
        query_position, key_position: Position of the first query and of the first key, an int or a scalar integer
            tensor (for caches); or of every one, an integer tensor `(L,)` or `(B, L)`. Default to 0. `use_causal_mask`
            and `sliding_window` compare positions.

    Returns:
        The output `(B, Lq, dim)`; with `return_attention_scores` also the softmax `(B, num_heads, Lq, Lk)`. Scores and
        softmax are computed in float32 under mixed precision.
    """

    def __init__(
        self,
        num_heads: int,
        key_dim: int,
        value_dim: int | None = None,
        dropout: float = 0.0,
        use_bias: bool = True,
        output_shape: Any = None,
        encoding: RelativeEncoding | None = None,
        scale: float | None = None,
        query_block: int | None = None,
        **kwargs: Any,
    ) -> None:
        """Keras' MultiHeadAttention, with an encoding in every head.

        Args:
            num_heads, key_dim, value_dim, dropout, use_bias, output_shape: As in `keras.layers.MultiHeadAttention`,
                whose other arguments are taken too.
            encoding: `None`, or a layer of `relattn.keras` made for `num_heads` heads of width `key_dim`.
            scale: The scale of the scores; `1 / sqrt(key_dim)` by default.
            query_block: Queries that are computed at once. A training step then holds `query_block * Lk` scores per
                head, not `Lq * Lk`, and computes them again for their gradients. `None` takes all queries at once for
                short sequences, and blocks for long ones.
        """
        if encoding is not None and not isinstance(encoding, RelativeEncoding):
            raise TypeError(f"encoding: got {kind_of(encoding)}; expected a layer of relattn.keras or None")
        if scale is not None:
            check_scale(scale)
        if query_block is not None:
            query_block = check_size("query_block", query_block)
        beside = "an encoding" if encoding is not None else "query_block"
        axes = kwargs.get("attention_axes")
        if encoding is not None or query_block is not None:
            if kwargs.get("flash_attention"):
                raise ValueError(
                    f"flash_attention: got True beside {beside}; expected None: fused kernels have no relative terms "
                    "and no blocks of queries"
                )
            if axes not in (None, 1, (1,), [1]):
                raise ValueError(
                    f"attention_axes: got {axes!r} beside {beside}; expected None: positions are those of axis 1"
                )
        super().__init__(num_heads, key_dim, value_dim, dropout, use_bias, output_shape, **kwargs)
        self.encoding, self.scale, self.query_block = encoding, scale, query_block
        if scale is not None:
            self._inverse_sqrt_key_dim = scale

    def build(self, query_shape: Shape, value_shape: Shape, key_shape: Shape | None = None) -> None:
        """Makes the projections, and the weights of the encoding."""
        if self.encoding is not None or self.query_block is not None:
            _check_ranks(query_shape, value_shape)
        super().build(query_shape, value_shape, key_shape)
        if self.encoding is not None and not self.encoding.built:
            self.encoding.build((query_shape[0], self.num_heads, query_shape[1], self.key_dim))

    def call(
        self,
        query: Tensor,
        value: Tensor,
        key: Tensor | None = None,
        query_mask: Tensor | None = None,
        value_mask: Tensor | None = None,
        key_mask: Tensor | None = None,
        attention_mask: Tensor | None = None,
        return_attention_scores: bool = False,
        training: bool | None = None,
        use_causal_mask: bool = False,
        query_position: Place = 0,
        key_position: Place = 0,
    ) -> Any:
        """The output, and the softmax if wanted."""
        start = as_place("query_position", query_position, *query.shape[1::-1])
        key_start = as_place("key_position", key_position, *value.shape[1::-1])
        from_zero = isinstance(start, int) and isinstance(key_start, int) and start == key_start == 0
        if self.encoding is not None or self.query_block is not None or not from_zero:
            _check_ranks(query.shape, value.shape)
            masks = query_mask, value_mask, key_mask, attention_mask
            attention_mask = _Call(
                self._positions(start, key_start, query, value, use_causal_mask), self._mask(query, value, *masks)
            )
            query, value, key = _without_padding(attention_mask, query, value, key)
        return super().call(
            query,
            value,
            key=key,
            query_mask=query_mask,
            value_mask=value_mask,
            key_mask=key_mask,
            attention_mask=attention_mask,
            return_attention_scores=return_attention_scores,
            training=training,
            use_causal_mask=use_causal_mask,
        )

    def _compute_attention_mask(
        self,
        query: Tensor,
        value: Tensor,
        query_mask: Tensor | None = None,
        value_mask: Tensor | None = None,
        key_mask: Tensor | None = None,
        attention_mask: Any = None,
        use_causal_mask: bool = False,
    ) -> Any:
        if isinstance(attention_mask, _Call):
            return attention_mask
        unmasked = all(mask is None for mask in (attention_mask, query_mask, value_mask, key_mask))
        if use_causal_mask and unmasked and self._sliding_window is None:
            return _ONLY_CAUSAL
        return super()._compute_attention_mask(
            query,
            value,
            query_mask=query_mask,
            value_mask=value_mask,
            key_mask=key_mask,
            attention_mask=attention_mask,
            use_causal_mask=use_causal_mask,
        )

    def _compute_attention(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        attention_mask: Any = None,
        training: bool | None = None,
        return_attention_scores: bool = False,
        use_causal_mask: bool = False,
    ) -> tuple[Tensor, Tensor | None]:
        if not isinstance(attention_mask, _Call):
            only_causal = attention_mask is _ONLY_CAUSAL
            return super()._compute_attention(
                query,
                key,
                value,
                None if only_causal else attention_mask,
                training,
                return_attention_scores,
                use_causal_mask=use_causal_mask or only_causal,
            )
        dtype = score_dtype(self.compute_dtype)
        query, key, value = (ops.cast(ops.transpose(x, (0, 2, 1, 3)), dtype) for x in (query, key, value))
        positions, mask = attention_mask
        terms = ScoreTerms()
        if self.encoding is not None:
            key = self.encoding.prepare_keys(key, positions.key)
            terms = self.encoding.terms(query, positions)
        output, weights = attend(
            query,
            key,
            value,
            terms,
            positions,
            mask,
            scale=self._inverse_sqrt_key_dim,
            dropout=self._dropout,
            seed=self._dropout_layer.seed_generator.next() if training and self._dropout > 0.0 else None,
            block=self.query_block,
            return_weights=return_attention_scores,
        )
        output = ops.cast(ops.transpose(output, (0, 2, 1, 3)), self.compute_dtype)
        return output, None if weights is None else ops.cast(weights, self.compute_dtype)

    def _positions(self, start: Place, key_start: Place, query: Tensor, value: Tensor, causal: bool) -> Positions:
        """The positions of queries and keys, and the offsets that causality and the sliding window leave visible."""
        window = None if self._sliding_window is None else self._sliding_window - 1
        return Positions(
            start,
            key_start,
            ops.shape(query)[1],
            ops.shape(value)[1],
            lowest=None if window is None else -window,
            highest=0 if causal else window,
        )

    def _mask(
        self,
        query: Tensor,
        value: Tensor,
        query_mask: Tensor | None,
        value_mask: Tensor | None,
        key_mask: Tensor | None,
        attention_mask: Tensor | None,
    ) -> Mask:
        """All masks of a call, in one form."""
        queries = as_length_mask("query_mask", query_mask, *query.shape[:2])
        values = as_length_mask("value_mask", value_mask, *value.shape[:2])
        keys = as_length_mask("key_mask", key_mask, *value.shape[:2])
        if values is not None and keys is not None:
            keys = ops.logical_and(values, keys)
        shape = (query.shape[0], self.num_heads, query.shape[1], value.shape[1])
        return Mask(queries, values if keys is None else keys, as_pair_mask(attention_mask, shape))

    def compute_output_spec(
        self,
        query: Tensor,
        value: Tensor,
        key: Tensor | None = None,
        query_mask: Tensor | None = None,
        value_mask: Tensor | None = None,
        key_mask: Tensor | None = None,
        attention_mask: Tensor | None = None,
        return_attention_scores: bool = False,
        training: bool | None = None,
        use_causal_mask: bool = False,
        query_position: Place = 0,
        key_position: Place = 0,
    ) -> Any:
        """The shapes and dtypes of what is returned, for functional models."""
        shape = self.compute_output_shape(query.shape, value.shape, None if key is None else key.shape)
        output = keras.KerasTensor(shape, dtype=self.compute_dtype)
        if not return_attention_scores:
            return output
        weights = (query.shape[0], self.num_heads, query.shape[1], value.shape[1])
        return output, keras.KerasTensor(weights, dtype=self.compute_dtype)

    def get_config(self) -> dict[str, Any]:
        """The arguments it was made with."""
        encoding: Any = keras.saving.serialize_keras_object(self.encoding)
        if encoding is not None:  # Keras' own mark, so that layers that share an encoding share it again after loading
            encoding["shared_object_id"] = id(self.encoding)
        return {
            **super().get_config(),
            "encoding": encoding,
            "scale": self.scale,
            "query_block": self.query_block,
        }

    @classmethod
    def from_config(cls, config: dict[str, Any]) -> RelativeMultiHeadAttention:
        """The layer that `get_config` describes."""
        return cls(**{**config, "encoding": keras.saving.deserialize_keras_object(config["encoding"])})


def _without_padding(
    call: _Call, query: Tensor, value: Tensor, key: Tensor | None
) -> tuple[Tensor, Tensor, Tensor | None]:
    """The inputs with zeros for unseen rows, before the projections: else these rows would reach their gradients."""
    queries, keys = (None if each is None else ops.any(each, axis=1) for each in seen(call.mask, call.positions))
    return with_zeros(query, queries), with_zeros(value, keys), None if key is None else with_zeros(key, keys)


def _check_ranks(query_shape: Shape, value_shape: Shape) -> None:
    """Relative positions, and blocks of queries, need a single attention axis."""
    for name, shape in (("query", query_shape), ("value", value_shape)):
        if len(shape) != 3:
            raise ShapeError(f"{name}: got shape {list(shape)}; expected [batch, length, features]")
