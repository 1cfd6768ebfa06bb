"""RotaryEmbedding: queries and keys rotated by their positions (Su et al. 2021)."""

from __future__ import annotations

from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from relattn.arguments import check_base, check_flag, check_size, complete_scaling
from relattn.encodings.base import RelativeEncoding
from relattn.encodings.frequencies import rope_frequencies
from relattn.errors import ShapeError
from relattn.score.checks import shape
from relattn.score.position import Position
from relattn.score.positions import Positions
from relattn.score.terms import ScoreTerms


class RotaryEmbedding(RelativeEncoding):
    """S_ij = scale * (Rot(i) q_i) . (Rot(j) k_j), which depends on j - i alone; no table, no parameters.

    Rot(p) turns feature pair f by the angle p * base^(-2 f / rotary_dim).

    rotary_dim: how many features are rotated, from the first; even, head_dim unless given. The others pass unrotated.
    interleaved: True pairs neighbours (0, 1), (2, 3), ... as in the paper; False pairs feature f with f + rotary_dim /
        2, the layout of GPT-NeoX and Llama.
    scaling: for texts longer than those of the training, under the names of Hugging Face configs (`rope_scaling`):
        {"rope_type": "linear", "factor": s} divides every angle by s (position interpolation, Chen et al. 2023);
        {"rope_type": "yarn", "factor": s, "original_max_position_embeddings": L} divides the angles of the pairs that
        turn seldom within L positions (Peng et al. 2023), and multiplies the rotated features by 0.1 ln(s) + 1, so
        their product by its square; optional: "beta_fast" (32), "beta_slow" (1), "attention_factor", "ramp" ("pairs",
        as in the published code and in checkpoints, or "rotations", as in the paper), "truncate" (True);
        {"rope_type": "llama3", "factor": s, "low_freq_factor": a, "high_freq_factor": b,
        "original_max_position_embeddings": L} does so by the rule of Llama 3.1 and multiplies nothing.
        The formulas: `relattn.offsets.rope_frequencies`.

    Source: Su et al. 2021 (RoFormer), eq. 14, 15 and 34.
    """

    def __init__(
        self,
        head_dim: int,
        *,
        base: float = 10000.0,
        rotary_dim: int | None = None,
        interleaved: bool = False,
        scaling: dict[str, Any] | None = None,
    ) -> None:
        super().__init__()
        check_size("head_dim", head_dim)
        rotary_dim = head_dim if rotary_dim is None else rotary_dim
        check_size("rotary_dim", rotary_dim, least=2)
        if rotary_dim > head_dim or rotary_dim % 2:
            raise ValueError(
                f"rotary_dim: got {rotary_dim} with head_dim={head_dim}; expected an even number of features, at "
                f"most {head_dim}"
            )
        check_base(base)
        check_flag("interleaved", interleaved)
        self.head_dim, self.rotary_dim, self.base, self.interleaved = head_dim, rotary_dim, float(base), interleaved
        self._rule = complete_scaling(scaling)
        self.scaling = None if scaling is None else dict(scaling)

    def prepare_keys(self, key: Float[Tensor, "B Hk Lk D"], key_position: Position) -> Float[Tensor, "B Hk Lk D"]:
        """Rot(j) k_j."""
        return self._rotate("key", key, key_position)

    def terms(
        self, query: Float[Tensor, "B Hq Lq D"], key: Float[Tensor, "B Hk Lk D"], positions: Positions
    ) -> ScoreTerms:
        """q := Rot(i) q_i; the keys came rotated from `prepare_keys`."""
        return ScoreTerms(query=self._rotate("query", query, positions.query))

    def _rotate(self, name: str, features: Float[Tensor, "B H L D"], position: Position) -> Float[Tensor, "B H L D"]:
        if features.shape[3] != self.head_dim:
            raise ShapeError(
                f"RotaryEmbedding head_dim: it was made for width {self.head_dim} and {name} has {features.shape[3]} "
                f"({shape(features)}); make it with head_dim={features.shape[3]}"
            )
        cos, sin = self._cos_sin(features, position)
        turned = features[..., : self.rotary_dim].to(cos.dtype)
        if self.interleaved:
            first, second = turned[..., 0::2], turned[..., 1::2]
        else:
            first, second = turned.chunk(2, dim=-1)
        pair = [first * cos - second * sin, second * cos + first * sin]
        rotated = torch.stack(pair, dim=-1).flatten(-2) if self.interleaved else torch.cat(pair, dim=-1)
        rotated = rotated.to(features.dtype)
        if self.rotary_dim == self.head_dim:
            return rotated
        return torch.cat([rotated, features[..., self.rotary_dim :]], dim=-1)

    def _cos_sin(self, features: Tensor, position: Position) -> tuple[Tensor, Tensor]:
        """Cosine and sine of every angle, times attention_factor, [L, rotary_dim / 2] or [B, 1, L, rotary_dim / 2].

        The angles are float64, for a position of many digits leaves a float32 angle few; their cosines are then rounded
        to the dtype of the scores.
        """
        positions = position.expand(features.shape[2], features.device).double()
        frequencies = rope_frequencies(self.rotary_dim, self.base, self._rule, features.device)
        angles = positions.unsqueeze(-1) * frequencies
        if angles.dim() == 3:
            angles = angles.unsqueeze(1)
        cos, sin = angles.cos(), angles.sin()
        if self._rule is not None:
            cos, sin = cos * self._rule["attention_factor"], sin * self._rule["attention_factor"]
        dtype = torch.float64 if features.dtype == torch.float64 else torch.float32
        return cos.to(dtype), sin.to(dtype)

    def extra_repr(self) -> str:
        """The arguments it was made with, for `print`."""
        return (
            f"{self.head_dim}, base={self.base}, rotary_dim={self.rotary_dim}, interleaved={self.interleaved}, "
            f"scaling={self.scaling}"
        )
