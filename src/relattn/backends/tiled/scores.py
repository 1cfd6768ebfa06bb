"""The scores of a tile: S_ij = scale * (q_i . k_j + r_i . RK[d] + RQ[d] . k_j) + b[d] + mask, times log2(e).

A tile holds its queries in reverse order, so that the offset grows along its rows as it does along its columns (see
`bands`). Whatever goes by query, the masks too, is reversed on the way in and on the way out.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float
from torch import Tensor

from relattn.backends.tiled.bands import Band, Offsets, make_band
from relattn.backends.tiled.base_two import LOG2_E
from relattn.backends.tiled.scratch import Scratch
from relattn.backends.tiled.sizes import TileSizes
from relattn.backends.tiled.tiles import Heads
from relattn.score.mask import Mask
from relattn.score.positions import Positions
from relattn.score.problem import Problem


def make_bands(problem: Problem, sizes: TileSizes, scratch: Scratch, gradients: set[str]) -> dict[str, Band]:
    """The band of each of the problem's tables, by name, with room for a gradient where `gradients` names it."""
    height = max(min(sizes.queries, problem.positions.query_length), 1)
    return {
        name: make_band(
            table,
            problem.positions,
            height,
            scratch,
            factor=LOG2_E if name == "bias" else 1.0,  # the other terms get it with the scale
            gradient=name in gradients,
        )
        for name, table in problem.tables.items()
    }


@dataclass(frozen=True)
class Group:
    """What all tiles of a group of heads share.

    beyond_limits: what hides the pairs of a tile that causality and window forbid, by its offset, height and width.
    """

    problem: Problem
    heads: Heads
    bands: dict[str, Band]
    scratch: Scratch
    beyond_limits: dict[tuple[Any, int, int], Tensor] = field(default_factory=dict)

    @classmethod
    def of(cls, problem: Problem, heads: Heads, bands: dict[str, Band], scratch: Scratch) -> Group:
        """The group of `heads`, with their part of every band."""
        return cls(problem, heads, {name: band.for_heads(heads.queries) for name, band in bands.items()}, scratch)

    @property
    def scale(self) -> float:
        """The scale of the scores in base 2."""
        return self.problem.scale * LOG2_E

    @cached_property
    def key(self) -> Float[Tensor, "Hk Lk D"]:
        """k, in the dtype of the scores."""
        return self.problem.key[self.heads.batch, self.heads.keys].to(self.scratch.dtype)

    @cached_property
    def key_columns(self) -> Float[Tensor, "Hk D+1 Lk"]:
        """k transposed, a row of ones below it."""
        return _columns_and_ones(self.key)

    @cached_property
    def value(self) -> Float[Tensor, "Hk Lk Dv"]:
        """v, in the dtype of the scores."""
        return self.problem.value[self.heads.batch, self.heads.keys].to(self.scratch.dtype)

    @cached_property
    def value_columns(self) -> Float[Tensor, "Hk Dv+1 Lk"]:
        """v transposed, a row of ones below it."""
        return _columns_and_ones(self.value)

    def rows(self, tensor: Float[Tensor, "B Hq Lq F"], queries: slice) -> Float[Tensor, "H n F"]:
        """The tile's part of something that goes by query, last query first, in the dtype of the scores."""
        return tensor[self.heads.batch, self.heads.queries, queries].flip(1).to(self.scratch.dtype).contiguous()

    def per_key_head(self, rows: Float[Tensor, "H n F"]) -> Float[Tensor, "Hk G*n F"]:
        """The rows of all query heads that share a key head, below one another."""
        return rows.view(-1, self.problem.num_groups * rows.shape[1], rows.shape[2])


@dataclass(frozen=True)
class QueryTile:
    """Neighbouring queries of a group, last one first: q and r times the scale.

    multiplier: what the keys are multiplied with; q, and where scores get a number added, that number beside it.
    """

    group: Group
    queries: slice
    query: Float[Tensor, "H n D"]
    relative_query: Float[Tensor, "H n Dr"] | None
    multiplier: Float[Tensor, "H n _"]

    @classmethod
    def of(cls, group: Group, queries: slice, added: Float[Tensor, "H n 1"] | None = None) -> QueryTile:
        """The tile of `queries`; added: to all the scores of each."""
        problem = group.problem
        query = group.rows(problem.query, queries) * group.scale
        relative_query = None
        if problem.relative_keys is not None:
            assert problem.relative_query is not None
            same = problem.relative_query is problem.query
            relative_query = query if same else group.rows(problem.relative_query, queries) * group.scale
        multiplier = query if added is None else torch.cat([query, added], dim=2)
        return cls(group, queries, query, relative_query, multiplier)

    def offsets(self, keys: slice) -> Offsets:
        """The offset of the last query and first key, or of every pair where positions are explicit."""
        positions = self.group.problem.positions
        if not positions.contiguous:
            return positions.tile(self.group.heads.batch, self.queries, keys).offsets().flip(0)
        first = positions.offset(self.queries.stop - 1, keys.start)
        assert isinstance(first, int)
        return first

    def scores(self, keys: slice) -> Float[Tensor, "H n m"] | None:
        """S in base 2 with -inf where a pair may not attend; None where no pair may. The next call overwrites them."""
        group, bands = self.group, self.group.bands
        mask, kept = self._mask(keys), None
        if mask is not None:
            kept = mask.kept()
            if kept is not None and not kept.any():
                return None
        rows, width = self.query.shape[:2], keys.stop - keys.start
        scores = group.scratch.take("scores", *rows, width)
        multiplier = group.per_key_head(self.multiplier)
        torch.bmm(multiplier, group.key_columns[:, : multiplier.shape[2], keys], out=group.per_key_head(scores))
        offsets = self.offsets(keys)
        if "relative_keys" in bands:
            bands["relative_keys"].spread(scores, self.relative_query, offsets)
        if "relative_queries" in bands:
            for block in self.key_blocks(keys, offsets):
                bands["relative_queries"].spread(block.transposed(scores), block.key, block.offsets)
        if "bias" in bands:
            bands["bias"].spread(scores, None, offsets)
        if mask is not None:
            added = mask.added()
            if added is not None:
                scores += added[0].flip(1).to(scores.dtype) * LOG2_E
        if kept is not None:
            scores += _hiding(kept[0].flip(1), scores.dtype)
        for columns in _crossing(group.problem.positions, offsets, *scores.shape[1:]):
            scores[:, :, columns] += self._beyond_limits(slice(keys.start + columns.start, keys.start + columns.stop))
        return scores

    def _mask(self, keys: slice) -> Mask | None:
        """The tile's part of the masks given as tensors, if there are any."""
        mask, heads = self.group.problem.mask, self.group.heads
        return None if mask.keeps_all else mask.tile(heads.batch, heads.queries, self.queries, keys)

    def _beyond_limits(self, keys: slice) -> Float[Tensor, "n m"]:
        """-inf outside of causality and window, 0 inside: the same for all tiles at the same offset."""
        group = self.group
        positions = group.problem.positions.tile(group.heads.batch, self.queries, keys)
        if not positions.contiguous:
            return _outside(positions, group.scratch.dtype)
        place = positions.first_diagonal, positions.query_length, positions.key_length
        if place not in group.beyond_limits:
            group.beyond_limits[place] = _outside(positions, group.scratch.dtype)
        return group.beyond_limits[place]

    def key_blocks(self, keys: slice, offsets: Offsets) -> Iterator[KeyBlock]:
        """`keys` in blocks no longer than the tile is high: the band of a relative query grows with both."""
        group, height, width = self.group, self.query.shape[1], keys.stop - keys.start
        for start in range(0, width, height):
            columns = slice(start, min(start + height, width))
            key = group.key[:, keys][:, columns] * group.scale
            of_block = offsets + start if isinstance(offsets, int) else offsets[:, columns].t()
            yield KeyBlock(columns, key.repeat_interleave(group.problem.num_groups, dim=0), of_block)


@dataclass(frozen=True)
class KeyBlock:
    """A few columns of a tile, seen from the keys: k times the scale, and the offsets with a row for each key."""

    columns: slice
    key: Float[Tensor, "H m D"]
    offsets: Offsets

    def transposed(self, scores: Float[Tensor, "H n _"]) -> Float[Tensor, "H m n"]:
        """The block's part of a tile, with a row for each key."""
        return scores[:, :, self.columns].transpose(1, 2)


def _outside(positions: Positions, dtype: torch.dtype) -> Float[Tensor, "n m"]:
    """-inf where causality or window hide a pair, else 0; the last query first."""
    within = Mask(positions).within_limits()
    if within is None:
        return torch.zeros(positions.query_length, positions.key_length, dtype=dtype, device=positions.device)
    return _hiding(within[0, 0].flip(0), dtype)


def _hiding(allowed: Bool[Tensor, "*n"], dtype: torch.dtype) -> Float[Tensor, "*n"]:
    """0 where a pair may attend, else -inf: to be added, which is seven times as fast as filling."""
    return torch.zeros(allowed.shape, dtype=dtype, device=allowed.device).masked_fill_(~allowed, -torch.inf)


def _columns_and_ones(tensor: Float[Tensor, "Hk Lk F"]) -> Float[Tensor, "Hk F+1 Lk"]:
    """Transposed, with a row of ones: lying so in memory makes a product with it faster, and the ones cost nothing."""
    return F.pad(tensor.transpose(1, 2), (0, 0, 0, 1), value=1.0)


def _crossing(positions: Positions, offsets: Offsets, height: int, width: int) -> list[slice]:
    """The columns of a tile in which causality or window may hide some query's pair."""
    if not isinstance(offsets, int):
        return [slice(0, width)]
    below = 0 if positions.lowest is None else min(max(positions.lowest - offsets, 0), width)
    above = width if positions.highest is None else min(max(positions.highest - offsets - height + 2, 0), width)
    return [columns for columns in (slice(0, below), slice(above, width)) if columns.start < columns.stop]
