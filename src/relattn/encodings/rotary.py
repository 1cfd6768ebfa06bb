"""RotaryEmbedding: queries and keys rotated by their positions (Su et al. 2021)."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
from jaxtyping import Float, Float64
from torch import Tensor

from relattn.arguments import check_base, check_flag, check_size
from relattn.encodings.base import RelativeEncoding
from relattn.encodings.frequencies import rope_frequencies
from relattn.errors import ShapeError
from relattn.rope_scaling import BY_LENGTH, complete_scaling, given_scaling
from relattn.score.checks import shape
from relattn.score.digits import Digits
from relattn.score.position import Listed, Position
from relattn.score.positions import Positions
from relattn.score.terms import ScoreTerms


class RotaryEmbedding(RelativeEncoding):
    """S_ij = scale * (Rot(i) q_i) . (Rot(j) k_j), which depends on j - i alone; no table, no parameters.

    Rot(p) turns feature pair f by the angle p * base^(-2 f / rotary_dim).

    rotary_dim: how many features are rotated, from the first; even, head_dim unless given. The others pass unrotated.
    interleaved: True pairs neighbours (0, 1), (2, 3), ... as in the paper; False pairs feature f with f + rotary_dim /
        2, the layout of GPT-NeoX and Llama.
    scaling: for texts longer than those of the training, under the names of Hugging Face configs (`rope_parameters`):
        {"rope_type": "linear", "factor": s} divides every angle by s (position interpolation, Chen et al. 2023);
        {"rope_type": "yarn", "factor": s, "original_max_position_embeddings": L} divides the angles of the pairs that
        turn seldom within L positions (Peng et al. 2023), and multiplies the rotated features by 0.1 ln(s) + 1, so
        their product by its square; optional: "beta_fast" (32), "beta_slow" (1), "attention_factor", "ramp" ("pairs",
        as in the published code and in checkpoints, or "rotations", as in the paper), "truncate" (True);
        {"rope_type": "llama3", "factor": s, "low_freq_factor": a, "high_freq_factor": b,
        "original_max_position_embeddings": L} does so by the rule of Llama 3.1 and multiplies nothing;
        {"rope_type": "dynamic", "factor": s, "original_max_position_embeddings": L} raises the base with the length of
        the call, from L on; L is the config's max_position_embeddings;
        {"rope_type": "longrope", "short_factor": [...], "long_factor": [...], "factor": s,
        "original_max_position_embeddings": L} divides the angle of each pair by a number of its own (Ding et al. 2024),
        from one list up to a length of L, from the other beyond, and multiplies by sqrt(1 + ln(s) / ln(L)), or by
        "attention_factor" in its place.
        The formulas: `relattn.offsets.rope_frequencies`.

    The length of a call ("dynamic" and "longrope") is its largest position + 1, in the whole batch. For keys that is
    the largest position of the keys that arrive together. For queries it is the largest position of the queries and of
    all keys that they meet, those of a cache too. So a whole sequence has one length, and so has a step of decoding. A
    cache keeps its older keys as they were rotated on arrival. Hugging Face's transformers does the same, but its
    "dynamic" remembers the longest text until it meets one shorter than L. Nothing is remembered here, and no tensor is
    read.

    Raises TypeError: for an `interleaved` that is no bool; ValueError: for other sizes, base or scaling. A call raises
    ShapeError: for queries or keys of another width.

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
        head_dim = check_size("head_dim", head_dim)
        rotary_dim = check_size("rotary_dim", head_dim if rotary_dim is None else rotary_dim, least=2)
        if rotary_dim > head_dim or rotary_dim % 2:
            raise ValueError(
                f"rotary_dim: got {rotary_dim} with head_dim={head_dim}; expected an even number of features, at "
                f"most {head_dim}"
            )
        check_flag("interleaved", interleaved)
        self.head_dim, self.rotary_dim, self.interleaved = head_dim, rotary_dim, interleaved
        self.base = check_base(base)
        self._rule = complete_scaling(scaling, rotary_dim // 2)
        self.scaling = given_scaling(scaling, self._rule)

    def prepare_keys(self, key: Float[Tensor, "B Hk Lk D"], key_position: Position) -> Float[Tensor, "B Hk Lk D"]:
        """Rot(j) k_j, for the length of these keys."""
        return self._rotate("key", key, key_position, self._length(key, (key_position, key.shape[2])))

    def terms(
        self, query: Float[Tensor, "B Hq Lq D"], key: Float[Tensor, "B Hk Lk D"], positions: Positions
    ) -> ScoreTerms:
        """q := Rot(i) q_i, for the length of queries and keys; the keys came rotated from `prepare_keys`."""
        queries, keys = (positions.query, positions.query_length), (positions.key, positions.key_length)
        return ScoreTerms(query=self._rotate("query", query, positions.query, self._length(query, queries, keys)))

    def _length(self, features: Tensor, *sides: tuple[Position, int]) -> Float64[Tensor, ""] | None:
        """The largest position of the sides + 1, for the scalings that ask. A side: its position and its length.

        A tensor whatever came: a graph that compared an int with L would be tied to its lengths.
        """
        if self._rule is None or self._rule["rope_type"] not in BY_LENGTH:
            return None
        return torch.stack([_reach(position, count, features.device) for position, count in sides]).max()

    def _rotate(
        self, name: str, features: Float[Tensor, "B H L D"], position: Position, length: Float64[Tensor, ""] | None
    ) -> Float[Tensor, "B H L D"]:
        if features.shape[3] != self.head_dim:
            raise ShapeError(
                f"RotaryEmbedding head_dim: got {self.head_dim}; expected {features.shape[3]}, the width of {name} "
                f"{shape(features)}; make it with head_dim={features.shape[3]}"
            )
        cos, sin = self._cos_sin(features, position, length)
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

    def _cos_sin(
        self, features: Tensor, position: Position, length: Float64[Tensor, ""] | None
    ) -> tuple[Tensor, Tensor]:
        """Cosine and sine of every angle, times attention_factor, [L, rotary_dim / 2] or [B, 1, L, rotary_dim / 2].

        The angles are float64, for a position of many digits leaves a float32 angle few; their cosines are then rounded
        to the dtype of the scores.
        """
        positions = _without_leading(position).expand(features.shape[2], features.device).double()
        frequencies = rope_frequencies(self.rotary_dim, self.base, self._rule, length, features.device)
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


def _without_leading(position: Position) -> Position:
    """The positions with 0 for elements that lead a grid: they stand nowhere on it, and are not turned."""
    return replace(position, nowhere=0) if isinstance(position, Digits) else position


def _reach(position: Position, count: int, device: torch.device) -> Float64[Tensor, ""]:
    """The largest position + 1 of `count` elements in a run or in digits, or of those that are listed."""
    if isinstance(position, Listed):
        listed = position.positions.double()
        return listed.max() + 1.0 if listed.numel() else listed.new_zeros(())
    if isinstance(position, Digits):
        standing = position.expand(count, device)[position.leading :]
        return standing.max().double() + 1.0 if standing.numel() else standing.new_zeros((), dtype=torch.float64)
    if isinstance(position.start, Tensor):
        return (position.start + count).to(device, torch.float64)
    return torch.full((), position.start + count, dtype=torch.float64, device=device)
