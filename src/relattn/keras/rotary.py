"""RotaryEmbedding: queries and keys rotated by their positions."""

from __future__ import annotations

import math
from functools import partial, reduce
from typing import Any

import numpy as np

from relattn.checks.values import check_base, check_flag, check_size
from relattn.encodings.rope_scaling import BY_LENGTH, complete_scaling, given_scaling, scaled_frequencies
from relattn.errors import UnsupportedError
from relattn.keras.encoding import RelativeEncoding, check_heads
from relattn.keras.installed import keras, ops
from relattn.keras.positions import Positions, reach
from relattn.keras.tensors import (
    Index,
    Place,
    Shape,
    Tensor,
    as_place,
    check_features,
    is_explicit,
    is_known,
    score_dtype,
)
from relattn.keras.terms import ScoreTerms
from relattn.keras.waves import cos_sin
from relattn.positions.offsets import inverse_frequencies, rope_frequencies


@keras.saving.register_keras_serializable(package="relattn")
class RotaryEmbedding(RelativeEncoding):
    """S_ij = scale * (Rot(i) q_i) . (Rot(j) k_j), which depends only on j - i; no weights.

    Rot(p) turns feature pair f by the angle p * base^(-2 f / rotary_dim).

    The length of a call ("dynamic" and "longrope") is its largest position + 1, in the whole batch. For keys it counts
    the keys that arrive together. For queries it counts the queries and all their keys. Positions that are tensors are
    read for it. Where a graph does not know them, "dynamic" needs float64. Keras does not have it on JAX:
    UnsupportedError.

    Call arguments:
        features: Queries or keys, a float tensor of shape `(B, H, L, head_dim)`.
        position: Position of the first, an int or a scalar integer tensor; or of each, an integer tensor `(L,)` or
            `(B, L)`. Defaults to 0.

    Returns:
        The rotated features, of the same shape.

    Reference: Su et al. 2021 (RoFormer), eq. 14, 15 and 34.
    """

    def __init__(
        self,
        head_dim: int,
        *,
        base: float = 10000.0,
        rotary_dim: int | None = None,
        interleaved: bool = False,
        scaling: dict[str, Any] | None = None,
        **kwargs: Any,
    ) -> None:
        """No weights: the angles follow from the base.

        Args:
            head_dim: Width of a head.
            base: The base of the frequencies.
            rotary_dim: The number of rotated features, from the first on; even; head_dim by default.
            interleaved: True pairs neighbours (0, 1), (2, 3), ... as in the paper; False pairs feature f with
                f + rotary_dim / 2, the layout of GPT-NeoX and Llama.
            scaling: For texts longer than those of the training, under the names of Hugging Face configs, e.g.
                `{"rope_type": "linear", "factor": s}`; "yarn", "llama3", "dynamic" and "longrope" as in
                `relattn.offsets.rope_frequencies`.
        """
        super().__init__(**kwargs)
        self.head_dim = head_dim = check_size("head_dim", head_dim)
        width = check_size("rotary_dim", head_dim if rotary_dim is None else rotary_dim, least=2)
        if width > head_dim or width % 2:
            raise ValueError(
                f"rotary_dim: got {width} with head_dim={head_dim}; expected an even number of features, at most "
                f"{head_dim}"
            )
        check_flag("interleaved", interleaved)
        self.base, self.rotary_dim, self.interleaved = check_base(base), width, interleaved
        self._rule = complete_scaling(scaling, width // 2)
        self.scaling = given_scaling(scaling, self._rule)

    def build(self, features_shape: Any = None) -> None:
        """There is nothing to make."""

    def call(self, features: Tensor, position: Place = 0) -> Tensor:
        """The rotated features."""
        check_features("features", features, None, self.head_dim)
        return self.prepare_keys(features, as_place("position", position, features.shape[2], features.shape[0]))

    def prepare_keys(self, keys: Tensor, key_position: Place) -> Tensor:
        """Rot(j) k_j, for the length of these keys."""
        return self._rotate(keys, key_position, self._length((key_position, ops.shape(keys)[2])))

    def terms(self, queries: Tensor, positions: Positions) -> ScoreTerms:
        """q := Rot(i) q_i, for the length of queries and keys. The keys are already rotated by `prepare_keys`."""
        sides = (positions.query, positions.query_length), (positions.key, positions.key_length)
        return ScoreTerms(query=self._rotate(queries, positions.query, self._length(*sides)))

    def _length(self, *sides: tuple[Place, Index]) -> Index | None:
        """The largest position of the sides + 1, at least 0, for the scalings that need it.

        A side: its place and its length.
        """
        if self._rule is None or self._rule["rope_type"] not in BY_LENGTH:
            return None
        reaches = [reach(place, count) for place, count in sides]
        return max(0, *reaches) if is_known(*reaches) else reduce(ops.maximum, reaches)

    def _rotate(self, features: Tensor, place: Place, length: Index | None) -> Tensor:
        check_heads("RotaryEmbedding", None, self.head_dim, features)
        kind = keras.backend.standardize_dtype(features.dtype)
        dtype = score_dtype(kind)
        positions = place if is_explicit(place) else place + ops.arange(ops.shape(features)[2], dtype="int32")
        waves = self._cos_sin(ops.reshape(positions, (-1,)), length, dtype)
        factor = 1.0 if self._rule is None else self._rule["attention_factor"]
        shape = (-1, 1, ops.shape(features)[2], self.rotary_dim // 2)
        cos, sin = (ops.reshape(wave * factor, shape) for wave in waves)
        turned = ops.cast(features[..., : self.rotary_dim], dtype)
        if self.interleaved:
            first, second = turned[..., 0::2], turned[..., 1::2]
        else:
            first, second = turned[..., : self.rotary_dim // 2], turned[..., self.rotary_dim // 2 :]
        pair = [first * cos - second * sin, second * cos + first * sin]
        if self.interleaved:
            rotated = ops.reshape(ops.stack(pair, axis=-1), ops.shape(turned))
        else:
            rotated = ops.concatenate(pair, axis=-1)
        rotated = ops.cast(rotated, kind)
        if self.rotary_dim == self.head_dim:
            return rotated
        return ops.concatenate([rotated, features[..., self.rotary_dim :]], axis=-1)

    def _cos_sin(self, positions: Tensor, length: Index | None, dtype: str) -> tuple[Tensor, Tensor]:
        """Cosine and sine of the angles, [n, rotary_dim / 2].

        length: a tensor where it is only known when the graph runs.
        """
        if length is None or is_known(length):
            return cos_sin(positions, self._frequencies(length), dtype)
        assert self._rule is not None
        if self._rule["rope_type"] == "dynamic":
            return cos_sin(positions, self._growing_frequencies(length, self._rule), dtype)
        last = math.floor(self._rule["original_max_position_embeddings"])  # this takes the short factors
        short, long = (cos_sin(positions, self._frequencies(each), dtype) for each in (last, last + 1))
        cos, sin = (ops.where(length > last, *waves) for waves in zip(long, short, strict=True))
        return cos, sin

    def _frequencies(self, length: int | None) -> np.ndarray:
        return rope_frequencies(self.rotary_dim, self.base, self.scaling, length)[0]

    def _growing_frequencies(self, length: Tensor, rule: dict[str, Any]) -> Tensor:
        """The frequencies of "dynamic", in the float64 that a TensorFlow graph has."""
        if keras.backend.backend() == "jax":
            raise UnsupportedError(
                "RotaryEmbedding: got positions whose values exist only while the graph runs, and the scaling "
                "'dynamic', whose frequencies need float64, which Keras does not have on JAX; give starts as Python's "
                "own ints, or call it without jax.jit"
            )
        array = partial(ops.convert_to_tensor, dtype="float64")
        theta, pairs = inverse_frequencies(self.rotary_dim, self.base), np.arange(self.rotary_dim // 2)
        reached = ops.maximum(ops.cast(length, "float64"), array(rule["original_max_position_embeddings"]))
        return scaled_frequencies(array(theta), array(pairs), self.base, rule, reached, array)

    def compute_output_shape(self, features_shape: Shape) -> Shape:  # pyright: ignore[reportIncompatibleMethodOverride]
        """The shape of the features."""
        return features_shape

    def compute_output_spec(self, features: Tensor, position: Place = 0) -> Any:  # pyright: ignore
        """The shape and dtype of the rotated features, for functional models."""
        check_heads("RotaryEmbedding", None, self.head_dim, features)
        return keras.KerasTensor(features.shape, dtype=self.compute_dtype)

    def get_config(self) -> dict[str, Any]:
        """The arguments it was made with."""
        return {
            **super().get_config(),
            "head_dim": self.head_dim,
            "base": self.base,
            "rotary_dim": self.rotary_dim,
            "interleaved": self.interleaved,
            "scaling": self.scaling,
        }
