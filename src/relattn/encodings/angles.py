"""The cosine and sine of every angle by which a rotation turns its feature pairs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple

import torch
from jaxtyping import Float, Float64
from torch import Tensor

from relattn.encodings.constants import LONG_TENSORS, inverse_frequencies, lru_tensor_cache
from relattn.encodings.rope_scaling import BY_LENGTH, scaled_frequencies
from relattn.interception import is_compiled
from relattn.positions.contiguous import ContiguousPositions
from relattn.positions.explicit import ExplicitPositions
from relattn.positions.grid import GridPositions
from relattn.positions.position import Position

Sides = tuple[tuple[Position, int], ...]


class Angles(NamedTuple):
    """Pair f turns by p * frequency_f, with p the position on the axis of the pair. Equal angles have equal hashes.

    rotary_dim: twice the number of pairs. rule: the items of a scaling from `complete_scaling`. axis_of_pair: the
    number of every pair's axis; None where there is one axis. own_sizes: the number of pairs on each axis, where each
    axis counts its own frequencies.
    """

    rotary_dim: int
    base: float
    rule: tuple[tuple[str, Any], ...] | None = None
    axis_of_pair: tuple[int, ...] | None = None
    own_sizes: tuple[int, ...] | None = None

    def cos_sin(
        self, places: Sequence[Position], count: int, sides: Sides, dtype: torch.dtype, device: torch.device
    ) -> tuple[Float[Tensor, "*B L pairs"], Float[Tensor, "*B L pairs"]]:
        """Cosine and sine of every angle, times attention_factor, for `count` elements.

        The angles are float64, because in float32 a position with many digits leaves few digits for the angle. Their
        cosines and sines are then rounded to `dtype`. places: the positions on every axis. sides: the positions and the
        number of elements of each side that counts for the length of the call, for the rules that depend on it.

        In a model every layer turns by the same angles, and its queries often by those of its keys. So what follows
        from numbers alone is made once, for the last calls.
        """
        places = tuple(map(_rotation_position, places))
        if self.rule is None or dict(self.rule)["rope_type"] not in BY_LENGTH:
            sides = ()
        without_tensors = all(map(_holds_no_tensor, (*places, *(place for place, _ in sides))))
        return (_cached_cos_sin if without_tensors else _cos_sin)(self, places, count, sides, dtype, device)

    def frequencies(self, length: Float64[Tensor, ""] | None, device: torch.device) -> Float64[Tensor, "pairs"]:
        """The angle of every pair at position 1, as in `offsets.rope_frequencies`.

        length: the length of the call, for the rules that depend on it.
        """
        if self.own_sizes is not None:
            return torch.cat([inverse_frequencies(2 * size, self.base, device) for size in self.own_sizes])
        theta = inverse_frequencies(self.rotary_dim, self.base, device)
        if self.rule is None:
            return theta
        rule, array = dict(self.rule), partial(torch.tensor, dtype=torch.float64, device=device)
        if length is not None:
            length = length.clamp(min=rule["original_max_position_embeddings"])
        pairs = torch.arange(self.rotary_dim // 2, dtype=torch.float64, device=device)
        return scaled_frequencies(theta, pairs, self.base, rule, length, array)


def _cos_sin(
    angles: Angles, places: tuple[Position, ...], count: int, sides: Sides, dtype: torch.dtype, device: torch.device
) -> tuple[Tensor, Tensor]:
    by_axis = [place.expand(count, device).double() for place in places]
    if angles.axis_of_pair is None:
        positions = by_axis[0].unsqueeze(-1)
    else:
        positions = torch.stack(torch.broadcast_tensors(*by_axis), dim=-1)[..., list(angles.axis_of_pair)]
    length = None  # of the call; a tensor, because a graph that compared an int with L would depend on its lengths
    if sides:
        length = torch.stack([_reach(position, count, device) for position, count in sides]).max()
    phases = positions * angles.frequencies(length, device)
    cos, sin = phases.cos(), phases.sin()
    if angles.rule is not None:
        factor = dict(angles.rule)["attention_factor"]
        cos, sin = cos * factor, sin * factor
    cos, sin = cos.to(dtype), sin.to(dtype)
    return (_materialized(cos), _materialized(sin)) if is_compiled() else (cos, sin)


def _materialized(table: Tensor) -> Tensor:
    """The same numbers, read through strides. Else torch.compile computes a cosine again for every head and pair."""
    return table.as_strided(table.shape, table.stride())


_cached_cos_sin = lru_tensor_cache(LONG_TENSORS)(_cos_sin)
"""Few answers are kept: two rotations of a model, each for queries and for keys."""


def _reach(position: Position, count: int, device: torch.device) -> Float64[Tensor, ""]:
    """The largest position + 1 of `count` elements in contiguous positions or on a grid, or of explicit positions."""
    if isinstance(position, ExplicitPositions):
        explicit = position.positions.double()
        return explicit.max() + 1.0 if explicit.numel() else explicit.new_zeros(())
    if isinstance(position, GridPositions):
        standing = position.expand(count, device)[position.prefix_tokens :]
        return standing.max().double() + 1.0 if standing.numel() else standing.new_zeros((), dtype=torch.float64)
    if isinstance(position.start, Tensor):
        return (position.start + count).to(device, torch.float64)
    return torch.full((), position.start + count, dtype=torch.float64, device=device)


def _holds_no_tensor(place: Position) -> bool:
    return isinstance(place, GridPositions) or (isinstance(place, ContiguousPositions) and isinstance(place.start, int))


def _rotation_position(place: Position) -> Position:
    """Tokens that stand off the grid are not turned."""
    return replace(place, off_grid=0) if isinstance(place, GridPositions) and place.prefix_tokens else place
