"""RotaryEmbedding: queries and keys rotated by their positions (Su et al. 2021)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from relattn.checks.tensors import shape
from relattn.checks.values import check_base, check_flag, check_size
from relattn.encodings.angles import Angles
from relattn.encodings.base import Key, Query, RelativeEncoding
from relattn.encodings.checks import check_axes
from relattn.encodings.rope_scaling import BY_LENGTH, complete_scaling, given_scaling
from relattn.encodings.rotation import rotated
from relattn.equation.terms import ScoreTerms
from relattn.errors import ShapeError, UnsupportedError
from relattn.positions.places import JointPositions
from relattn.positions.position import Position
from relattn.positions.positions import Positions


class RotaryEmbedding(RelativeEncoding):
    """S_ij = scale * (Rot(i) q_i) . (Rot(j) k_j), which depends only on j - i; no table, no parameters.

    Rot(p) turns feature pair f by the angle p * base^(-2 f / rotary_dim). With sections, p is the position on the axis
    to which the pair belongs.

    The length of a call ("dynamic" and "longrope") is its largest position + 1, in the whole batch. For keys it counts
    the keys that arrive together. For queries it counts the queries and all their keys, also those of a cache. So a
    whole sequence has one length, and so has a step of decoding. A cache keeps its older keys as they were rotated on
    arrival. Hugging Face's transformers does the same, but its "dynamic" remembers the longest text until it gets a
    text shorter than L. Nothing is remembered here, and no tensor is read.

    A call raises ShapeError: for queries or keys of another width.

    Source: Su et al. 2021 (RoFormer), eq. 14, 15 and 34; with sections Wang et al. 2024 (Qwen2-VL), section 2.1.
    """

    has_tables = False

    def __init__(
        self,
        head_dim: int,
        *,
        base: float = 10000.0,
        rotary_dim: int | None = None,
        interleaved: bool = False,
        scaling: dict[str, Any] | None = None,
        sections: Mapping[str, int] | None = None,
        own_frequencies: bool = False,
        interleaved_sections: bool = False,
    ) -> None:
        """No parameters: the angles follow from the base.

        head_dim: the width of a head.
        base: above 1; the larger it is, the slower the last pairs turn.
        rotary_dim: the number of rotated features, from the first on; even; head_dim by default. The others are not
            rotated.
        interleaved: True pairs neighbours (0, 1), (2, 3), ... as in the paper; False pairs feature f with f +
            rotary_dim / 2, the layout of GPT-NeoX and Llama.
        scaling: for texts longer than those of the training, under the names of Hugging Face configs
            (`rope_parameters`):
            {"rope_type": "linear", "factor": s} divides every angle by s (position interpolation, Chen et al. 2023);
            {"rope_type": "yarn", "factor": s, "original_max_position_embeddings": L} divides the angles of the pairs
            that turn seldom within L positions (Peng et al. 2023), and multiplies the rotated features by 0.1 ln(s) +
            1, and so their product by its square; optional: "beta_fast" (32), "beta_slow" (1), "attention_factor",
            "ramp" ("pairs", as in the published code and in checkpoints, or "rotations", as in the paper), "truncate"
            (True);
            {"rope_type": "llama3", "factor": s, "low_freq_factor": a, "high_freq_factor": b,
            "original_max_position_embeddings": L} does the same by the rule of Llama 3.1, and multiplies nothing;
            {"rope_type": "dynamic", "factor": s, "original_max_position_embeddings": L} raises the base with the length
            of the call, from L on; L is the config's max_position_embeddings;
            {"rope_type": "longrope", "short_factor": [...], "long_factor": [...], "factor": s,
            "original_max_position_embeddings": L} divides the angle of each pair by its own number (Ding et al. 2024),
            from one list up to a length of L and from the other beyond, and multiplies by sqrt(1 + ln(s) / ln(L)), or
            by "attention_factor" instead.
            The formulas: `relattn.offsets.rope_frequencies`.
        sections: the number of feature pairs for each axis, by its name, as {"t": 16, "y": 24, "x": 24}; their sum is
            rotary_dim / 2. The first pairs belong to the first axis, and so on. Tokens before a grid
            (`relattn.grid(..., prefix_tokens=n)`) are not turned. None: all pairs turn by the sequence.
        own_frequencies: False counts f over all pairs (M-RoPE). True counts f within the section: with s pairs the
            angles are p * base^(-f / s) (axial).
        interleaved_sections: True deals the pairs out in turn. With n axes, pair f belongs to axis f mod n as long as
            that axis has pairs left, else to the first axis (Qwen3-VL).

        Raises TypeError: for an `interleaved` that is not a bool; ValueError: for other sizes, base, scaling or
        sections; UnsupportedError: for sections with a scaling by length, or a scaling with frequencies of their own.
        """
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
        check_flag("own_frequencies", own_frequencies)
        check_flag("interleaved_sections", interleaved_sections)
        self.sections = None if sections is None else _checked_sections(sections, rotary_dim // 2)
        self.own_frequencies, self.interleaved_sections = own_frequencies, interleaved_sections
        angles = Angles(rotary_dim, self.base, None if self._rule is None else _hashable(self._rule))
        if self.sections is None:
            if own_frequencies or interleaved_sections:
                raise ValueError(
                    "own_frequencies, interleaved_sections: got True without sections; expected both False, or sections"
                )
            self._angles = angles
            return
        self.axes, sizes = tuple(self.sections), tuple(self.sections.values())
        self._angles = angles._replace(
            axis_of_pair=tuple(_axes_of_pairs(list(sizes), interleaved_sections)),
            own_sizes=sizes if own_frequencies else None,
        )
        if own_frequencies and interleaved_sections:
            raise UnsupportedError(
                "interleaved_sections: got True with own_frequencies=True; no model deals out frequencies of their "
                "own, keep one of them"
            )
        if self._rule is not None and (own_frequencies or self._rule["rope_type"] in BY_LENGTH):
            raise UnsupportedError(
                f"scaling: got {self._rule['rope_type']!r} with sections; expected no scaling with own_frequencies, "
                "and none by the length of the call, which several axes do not have"
            )

    def prepare_keys(self, key: Key, key_position: Position | Mapping[str, Position]) -> Key:
        """Rot(j) k_j, for the length of these keys."""
        if isinstance(key_position, Mapping):
            return self._rotate("key", key, [key_position[axis] for axis in self.axes])
        return self._rotate("key", key, [key_position], (key_position, key.shape[2]))

    def terms(self, query: Query, key: Key, positions: Positions) -> ScoreTerms:
        """q := Rot(i) q_i, for the length of queries and keys. The keys are already rotated by `prepare_keys`."""
        if isinstance(positions, JointPositions):
            places = [of_axis.query for of_axis in positions.by_axis.values()]
            return ScoreTerms(query=self._rotate("query", query, places))
        queries, keys = (positions.query, positions.query_length), (positions.key, positions.key_length)
        return ScoreTerms(query=self._rotate("query", query, [positions.query], queries, keys))

    def _rotate(
        self, name: str, features: Float[Tensor, "B H L D"], places: list[Position], *sides: tuple[Position, int]
    ) -> Float[Tensor, "B H L D"]:
        """sides: whose positions count for the length of the call, each with its number of elements."""
        if features.shape[3] != self.head_dim:
            raise ShapeError(
                f"RotaryEmbedding head_dim: got {self.head_dim}; expected {features.shape[3]}, the width of {name} "
                f"{shape(features)}; make it with head_dim={features.shape[3]}"
            )
        dtype = torch.float64 if features.dtype == torch.float64 else torch.float32
        cos, sin = self._angles.cos_sin(places, features.shape[2], sides, dtype, features.device)
        return rotated(features, cos, sin, interleaved=self.interleaved)

    def extra_repr(self) -> str:
        """The arguments it was made with, for `print`."""
        of_axes = ""
        if self.sections is not None:
            of_axes = (
                f", sections={self.sections}, own_frequencies={self.own_frequencies}, "
                f"interleaved_sections={self.interleaved_sections}"
            )
        return (
            f"{self.head_dim}, base={self.base}, rotary_dim={self.rotary_dim}, interleaved={self.interleaved}, "
            f"scaling={self.scaling}{of_axes}"
        )


def _hashable(rule: dict[str, Any]) -> tuple[tuple[str, Any], ...]:
    return tuple((name, tuple(value) if isinstance(value, list) else value) for name, value in rule.items())


def _checked_sections(sections: object, pairs: int) -> dict[str, int]:
    """Feature pairs by the name of an axis; together they must be all pairs."""
    if not isinstance(sections, Mapping) or not sections:
        raise ValueError(f"sections: got {sections!r}; expected feature pairs by axis, such as {{'y': 16, 'x': 16}}")
    check_axes("sections", tuple(sections))
    checked = {axis: check_size(f"sections[{axis!r}]", size) for axis, size in sections.items()}
    if sum(checked.values()) != pairs:
        raise ValueError(
            f"sections: got {checked}, {sum(checked.values())} feature pairs in all; expected {pairs}, half of "
            "rotary_dim"
        )
    return checked


def _axes_of_pairs(sizes: list[int], interleaved: bool) -> list[int]:
    if not interleaved:
        return [axis for axis, size in enumerate(sizes) for _ in range(size)]
    count = len(sizes)
    dealt = [pair % count if pair < count * sizes[pair % count] else 0 for pair in range(sum(sizes))]
    if [dealt.count(axis) for axis in range(count)] != sizes:
        raise ValueError(
            f"sections: got {sizes} feature pairs with interleaved_sections=True; expected sizes that can be dealt out "
            "in turn, the first axis taking what is left"
        )
    return dealt
