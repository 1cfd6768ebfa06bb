"""RotaryEmbedding: queries and keys rotated by their positions."""

from __future__ import annotations

from typing import Any

from relattn.arguments import check_base, check_flag, check_size
from relattn.errors import UnsupportedError
from relattn.keras.encoding import RelativeEncoding, check_heads
from relattn.keras.installed import keras, ops
from relattn.keras.positions import Positions
from relattn.keras.tensors import Place, Shape, Tensor, as_place, check_features, is_list, score_dtype
from relattn.keras.terms import ScoreTerms
from relattn.keras.waves import cos_sin
from relattn.offsets import rope_frequencies


@keras.saving.register_keras_serializable(package="relattn")
class RotaryEmbedding(RelativeEncoding):
    """S_ij = scale * (Rot(i) q_i) . (Rot(j) k_j), which depends on j - i alone; no weights.

    Rot(p) turns feature pair f by the angle p * base^(-2 f / rotary_dim).

    Args:
        head_dim: Width of a head.
        base: Of the frequencies.
        rotary_dim: How many features are rotated, from the first; even, head_dim unless given.
        interleaved: True pairs neighbours (0, 1), (2, 3), ... as in the paper; False pairs feature f with
            f + rotary_dim / 2, the layout of GPT-NeoX and Llama.
        scaling: For texts longer than those of the training, under the names of Hugging Face configs, e.g.
            `{"rope_type": "linear", "factor": s}`; "yarn" and "llama3" as in `relattn.offsets.rope_frequencies`.
            "dynamic" and "longrope" are PyTorch only: UnsupportedError.

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
        kind = scaling.get("rope_type") if isinstance(scaling, dict) else None
        if kind in ("dynamic", "longrope"):
            raise UnsupportedError(
                f"scaling['rope_type']: got {kind!r}; relattn.keras has 'linear', 'yarn' and 'llama3', whose angles do "
                "not depend on the length of a call; take relattn.RotaryEmbedding under PyTorch for it"
            )
        self.scaling = None if scaling is None else dict(scaling)
        self._frequencies, self._factor = rope_frequencies(width, self.base, self.scaling)

    def build(self, features_shape: Any = None) -> None:
        """There is nothing to make."""

    def call(self, features: Tensor, position: Place = 0) -> Tensor:
        """The rotated features."""
        check_features("features", features, None, self.head_dim)
        return self._rotate(features, as_place("position", position, features.shape[2], features.shape[0]))

    def prepare_keys(self, keys: Tensor, key_position: Place) -> Tensor:
        """Rot(j) k_j."""
        return self._rotate(keys, key_position)

    def terms(self, queries: Tensor, positions: Positions) -> ScoreTerms:
        """q := Rot(i) q_i; the keys come rotated from `prepare_keys`."""
        return ScoreTerms(query=self._rotate(queries, positions.query))

    def _rotate(self, features: Tensor, place: Place) -> Tensor:
        check_heads("RotaryEmbedding", None, self.head_dim, features)
        kind = keras.backend.standardize_dtype(features.dtype)
        dtype = score_dtype(kind)
        positions = place if is_list(place) else place + ops.arange(ops.shape(features)[2], dtype="int32")
        waves = cos_sin(ops.reshape(positions, (-1,)), self._frequencies, dtype)
        shape = (-1, 1, ops.shape(features)[2], len(self._frequencies))
        cos, sin = (ops.reshape(wave * self._factor, shape) for wave in waves)
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
