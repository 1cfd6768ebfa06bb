"""The scores of a tile: S_ij = scale * (q_i . k_j + r_i . RK[d] + RQ[d] . k_j) + b[d], capped, + a_j - c_i + mask.

All of it is times log2(e).

The terms of offsets are summed over the axes. Every axis has its own offsets, its own bands and its own r.

A tile holds its queries in reverse order, so that the offset grows along its rows and along its columns (see `bands`).
Everything with an axis of queries, masks too, is reversed on the way in and on the way out.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from relattn.backends.tiled.bands import Band, GridOffsets, Offsets, seen_from
from relattn.backends.tiled.base_two import LOG2_E
from relattn.backends.tiled.make_band import in_boxes, make_band
from relattn.backends.tiled.scratch import Scratch
from relattn.backends.tiled.sizes import TileSizes
from relattn.backends.tiled.tiles import Heads
from relattn.equation.key_bias import lowered
from relattn.equation.mask import Mask
from relattn.equation.problem import TABLES, Differentiable, Problem
from relattn.equation.visibility import Visibility, with_zeros
from relattn.equation.visible_ranges import VisibleRanges
from relattn.positions.explicit import ExplicitPositions
from relattn.positions.positions import Positions


@dataclass(frozen=True)
class Call:
    """What all tiles of a forward or backward pass share.

    bands: the band of each table of each axis, by name. boxes: the axes whose offsets follow from boxes. hidden: the
        pairs that causality and window hide in a tile, by the offset, height and width of the part that they cross.
    visibility: the keys that some query sees, and the queries that see some key. ranges: the keys that each query may
        see by what is data; None where no data hides a pair.
    key_bias: a [B, Hq, Lk] and c [B, Hq, Lq], views of the results of `key_bias.lowered`.
    """

    problem: Problem
    sizes: TileSizes
    scratch: Scratch
    bands: tuple[dict[str, Band], ...]
    boxes: tuple[bool, ...]
    visibility: Visibility
    ranges: VisibleRanges | None
    key_bias: tuple[Tensor, Tensor] | None
    hidden: dict[tuple[Any, int, int], Tensor] = field(default_factory=dict)

    @classmethod
    def of(cls, problem: Problem, sizes: TileSizes, gradients: Differentiable[bool] | None) -> Call:
        """The call of a problem; gradients: of which tables they will be collected."""
        scratch = Scratch(problem.score_dtype(), problem.query.device)
        of_boxes = tuple(in_boxes(axis) for axis in problem.axes)
        bands = tuple(
            {
                name: make_band(
                    table,
                    axis.positions,
                    sizes.queries,
                    scratch,
                    boxes=of_boxes[number],
                    factor=LOG2_E if name == "bias" else 1.0,  # the other terms get it with the scale
                    gradient=gradients is not None and gradients.axes[number].tables[TABLES.index(name)],
                )
                for name, table in axis.tables().items()
            }
            for number, axis in enumerate(problem.axes)
        )
        visibility = Visibility.of(problem.mask, problem.query.shape[0], problem.key.shape[1])
        ranges = VisibleRanges.of(problem.mask, has_bias=problem.has_bias()) if problem.num_pairs() else None
        key_bias = None
        if problem.key_bias is not None:
            rows, num_keys = problem.query.shape[:3], problem.key.shape[2]
            a, c = lowered(problem)
            key_bias = a.expand(*rows[:2], num_keys), c.expand(rows)
        return cls(problem, sizes, scratch, bands, of_boxes, visibility, ranges, key_bias)


@dataclass(frozen=True)
class Group:
    """What all tiles of a group of heads share."""

    call: Call
    heads: Heads
    bands: tuple[dict[str, Band], ...]

    @classmethod
    def of(cls, call: Call, heads: Heads) -> Group:
        """The group of `heads`, with their part of every band."""
        of_heads = ({name: band.for_heads(heads.queries) for name, band in bands.items()} for bands in call.bands)
        return cls(call, heads, tuple(of_heads))

    @property
    def problem(self) -> Problem:
        """The whole problem."""
        return self.call.problem

    @property
    def scratch(self) -> Scratch:
        """The call's buffers."""
        return self.call.scratch

    @property
    def scale(self) -> float:
        """The scale of the scores in base 2."""
        return self.problem.scale * LOG2_E

    @cached_property
    def key(self) -> Float[Tensor, "Hk Lk D"]:
        """k, in the dtype of the scores; zero where no query sees it."""
        return self._seen(self.problem.key)

    @cached_property
    def key_columns(self) -> Float[Tensor, "Hk D Lk"]:
        """k transposed, which makes the products with it faster."""
        return self.key.transpose(1, 2).contiguous()

    @cached_property
    def value(self) -> Float[Tensor, "Hk Lk Dv"]:
        """v, in the dtype of the scores; zero where no query sees it."""
        return self._seen(self.problem.value)

    @cached_property
    def value_columns(self) -> Float[Tensor, "Hk Dv Lk"]:
        """v transposed."""
        return self.value.transpose(1, 2).contiguous()

    def rows(self, tensor: Float[Tensor, "B Hq Lq F"], queries: slice) -> Float[Tensor, "H n F"]:
        """The tile's part of a tensor with an axis of queries, last query first, in the dtype of the scores."""
        return tensor[self.heads.batch, self.heads.queries, queries].flip(1).to(self.scratch.dtype).contiguous()

    def seeing_rows(self, tensor: Float[Tensor, "B Hq Lq F"], queries: slice) -> Float[Tensor, "H n F"]:
        """`rows` of a tensor with one row per query; zero where the query sees no key."""
        heads, seen, part = self.heads, self.call.visibility.queries, self.rows(tensor, queries)
        if seen is None:
            return part
        return with_zeros(part, seen.expand(tensor.shape[:3])[heads.batch, heads.queries, queries].flip(1))

    def _seen(self, tensor: Float[Tensor, "B Hk Lk F"]) -> Float[Tensor, "Hk Lk F"]:
        """The group's part of the keys or values."""
        heads, seen = self.heads, self.call.visibility.keys
        part = tensor[heads.batch, heads.keys].to(self.scratch.dtype)
        return part if seen is None else with_zeros(part, seen.expand(tensor.shape[:3])[heads.batch, heads.keys])

    def per_key_head(self, rows: Float[Tensor, "H n F"]) -> Float[Tensor, "Hk G*n F"]:
        """The rows of all query heads that share a key head, one below the other."""
        heads, height, width = rows.shape
        return rows.view(heads // self.problem.num_groups(), self.problem.num_groups() * height, width)


@dataclass(frozen=True)
class QueryTile:
    """Neighbouring queries of a group, last one first: q and each axis' r, times the scale; r is None where it is q."""

    group: Group
    queries: slice
    query: Float[Tensor, "H n D"]
    relative_query: tuple[Float[Tensor, "H n Dr"] | None, ...]

    @classmethod
    def of(cls, group: Group, queries: slice) -> QueryTile:
        """The tile of `queries`."""
        problem = group.problem
        query = group.seeing_rows(problem.query, queries) * group.scale
        given = (axis.relative_query for axis in problem.axes)
        return cls(
            group, queries, query,
            tuple(None if r is None else group.seeing_rows(r, queries) * group.scale for r in given),
        )  # fmt: skip

    def offsets(self, keys: slice) -> list[Offsets]:
        """For each axis: the offset of the last query and first key, or boxes, or the offset of every pair."""
        call = self.group.call
        return [
            self._offsets_on(axis.positions, keys, of_boxes)
            for axis, of_boxes in zip(call.problem.axes, call.boxes, strict=True)
        ]

    def _offsets_on(self, positions: Positions, keys: slice, of_boxes: bool) -> Offsets:
        if positions.known_origin is not None:
            return positions.known_origin + keys.start - (self.queries.stop - 1)
        if of_boxes:
            query, key = positions.query.part(self.queries), positions.key.part(keys)
            assert not isinstance(query, ExplicitPositions) and not isinstance(key, ExplicitPositions)
            return GridOffsets(query, key, self.queries.stop - self.queries.start, keys.stop - keys.start)
        return positions.part(self.queries, keys, self.group.heads.batch).offsets().flip(0)

    def scores(self, keys: slice) -> Float[Tensor, "H n m"] | None:
        """S in base 2 with -inf where a pair may not attend; None where no pair may. The next call overwrites them."""
        group = self.group
        mask, kept = self._mask(keys), None
        if mask is not None:
            kept = mask.kept()
            if kept is not None and not kept.any():
                return None
        rows, width = self.query.shape[:2], keys.stop - keys.start
        scores = group.scratch.take("scores", *rows, width)
        torch.bmm(group.per_key_head(self.query), group.key_columns[:, :, keys], out=group.per_key_head(scores))
        offsets = self.offsets(keys)
        for bands, r, of_axis in zip(group.bands, self.relative_query, offsets, strict=True):
            if "relative_keys" in bands:
                bands["relative_keys"].spread(scores, self.query if r is None else r, of_axis)
            if "relative_queries" in bands:
                for block in self.key_blocks(keys, of_axis):
                    bands["relative_queries"].spread(block.transposed(scores), block.key, block.offsets)
            if "bias" in bands:
                bands["bias"].spread(scores, None, of_axis)
        self._add_axisless_terms(scores, keys)
        if mask is not None:
            added = mask.added()
            if added is not None:  # in base 2 the lowest number of the dtype would become -inf, which hides
                in_base_two = added[0].flip(1).to(scores.dtype) * LOG2_E
                scores += in_base_two.clamp_(min=torch.finfo(scores.dtype).min)
        if kept is not None and not kept.all():
            scores.masked_fill_(~kept[0].flip(1), -torch.inf)
        for columns in _crossing(group.problem.sequence().positions, offsets[0], *scores.shape[1:]):
            hidden = self._hidden(slice(keys.start + columns.start, keys.start + columns.stop))
            if hidden is not None:
                scores[:, :, columns].masked_fill_(hidden, -torch.inf)
        return scores

    def _add_axisless_terms(self, scores: Float[Tensor, "H n m"], keys: slice) -> None:
        """S' = softcap * tanh(S / softcap) + a_j - c_i. The tanh stays in the buffer "capped"."""
        call, heads = self.group.call, self.group.heads
        if call.problem.softcap is not None:
            cap = call.problem.softcap * LOG2_E
            capped = torch.div(scores, cap, out=call.scratch.take("capped", *scores.shape)).tanh_()
            torch.mul(capped, cap, out=scores)
        if call.key_bias is not None:
            a, c = (each[heads.batch, heads.queries] for each in call.key_bias)
            a, c = a[:, keys].unsqueeze(1), c[:, self.queries].flip(1).unsqueeze(2)
            scores.add_(torch.sub(a, c, out=call.scratch.take("key bias", *scores.shape)), alpha=LOG2_E)

    def _mask(self, keys: slice) -> Mask | None:
        """The tile's part of the masks that are tensors, if there are any."""
        mask, heads = self.group.problem.mask, self.group.heads
        return None if mask.keeps_all() else mask.tile(heads.batch, heads.queries, self.queries, keys)

    def _hidden(self, keys: slice) -> Bool[Tensor, "n m"] | None:
        """Where causality and window hide a pair; None for nowhere. It is the same for all tiles at the same offset."""
        positions = self.group.problem.sequence().positions.part(self.queries, keys, self.group.heads.batch)
        known, place = self.group.call.hidden, None
        if positions.known_origin is not None:
            place = positions.known_origin, positions.query_length, positions.key_length
            if place in known:
                return known[place]
        beyond = Mask(positions).beyond_limits()
        hidden = None if beyond is None else beyond[0, 0].flip(0)
        if place is not None and hidden is not None:
            known[place] = hidden
        return hidden

    def key_blocks(self, keys: slice, offsets: Offsets) -> Iterator[KeyBlock]:
        """`keys` in blocks of at most the height of a tile, because the band of a relative query grows with both."""
        group, length, width = self.group, self.group.call.sizes.queries, keys.stop - keys.start
        for start in range(0, width, length):
            columns = slice(start, min(start + length, width))
            key = group.key[:, keys][:, columns] * group.scale
            key = key.repeat_interleave(group.problem.num_groups(), dim=0)
            yield KeyBlock(columns, key, seen_from(columns, offsets))


@dataclass(frozen=True)
class KeyBlock:
    """A few columns of a tile, seen from the keys: k times the scale, and the offsets with one row per key."""

    columns: slice
    key: Float[Tensor, "H m D"]
    offsets: Offsets

    def transposed(self, scores: Float[Tensor, "H n _"]) -> Float[Tensor, "H m n"]:
        """The block's part of a tile, with one row per key."""
        return scores[:, :, self.columns].transpose(1, 2)


def _crossing(positions: Positions, offsets: Offsets, height: int, width: int) -> list[slice]:
    """The columns of a tile in which causality or window may hide some query's pair."""
    if not isinstance(offsets, int):
        return [slice(0, width)]
    below = 0 if positions.lowest is None else min(max(positions.lowest - offsets, 0), width)
    above = width if positions.highest is None else min(max(positions.highest - offsets - height + 2, 0), width)
    return [columns for columns in (slice(0, below), slice(above, width)) if columns.start < columns.stop]
