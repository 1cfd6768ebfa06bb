"""LeViT: S = q . k / sqrt(D) + b[|dy|, |dx|]; its downsampling attention has queries on a coarser grid than keys."""

from __future__ import annotations

import math
from functools import lru_cache
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor
from transformers.models.levit.modeling_levit import LevitAttention, LevitAttentionSubsample

from relattn.encodings.grid import YX
from relattn.equation.tables import OffsetTable, gather_rows
from relattn.equation.terms import ScoreTerms
from relattn.hf.grids import places
from relattn.hf.heads import projected
from relattn.hf.interface import attend
from relattn.hf.masks import MaskStructure
from relattn.hf.replacement import Replacement
from relattn.positions.grid import GridPositions

LEAST = 65
"""From this many keys on modules are changed. Time of the replacement / the original, forward and training step, one
thread, (batch, heads, queries, keys): (4, 12, 16, 16) 1.34 and 1.38; (4, 8, 49, 49) 1.21 and 1.35; (16, 8, 49, 49) 1.00
and 1.15; (16, 8, 49, 196) 0.89 and 0.99; (4, 4, 196, 196) 0.56 and 0.79.
"""


class _DistanceAttention(Replacement):
    """Attention by vertical and horizontal distance. It hides nothing, and returns no weights."""

    by_name = False

    @staticmethod
    def cannot(module: Any) -> str | None:
        """Modules with small grids are left."""
        if module.len_points >= LEAST:
            return None
        side = math.isqrt(module.len_points)
        return f"a grid of {side} x {side} keys has so few pairs that relattn takes longer"

    def attended(
        self: Any,
        query: Float[Tensor, "B H Lq D"],
        key: Float[Tensor, "B H Lk D"],
        value: Float[Tensor, "B H Lk Dv"],
        stride: int,
    ) -> Float[Tensor, "B Lq width"]:
        """Queries stand on every stride-th row and column of the keys' square grid; the projected output."""
        side, coarse = math.isqrt(key.shape[2]), math.isqrt(query.shape[2])
        structure = MaskStructure(query_position=_strided(coarse, stride), key_position=places((side, side)))
        terms = _terms(self.attention_biases, side, stride * (coarse - 1))
        output, _ = attend(self, query, key, value, structure, terms, self.scale, 0.0, False)
        return self.projection(self.activation(output.flatten(2)))


class RelattnLevitAttention(_DistanceAttention, LevitAttention):
    """LevitAttention on relattn."""

    def forward(self, hidden_state: Float[Tensor, "B L width"]) -> Float[Tensor, "B L width"]:
        """The output, under LevitAttention's arguments."""
        widths = [self.key_dim, self.key_dim, self.attention_ratio * self.key_dim]
        (together,) = projected(hidden_state, (self.queries_keys_values,), sum(widths))
        query, key, value = together.split(widths, dim=3)
        return self.attended(query, key, value, 1)


class RelattnLevitAttentionSubsample(_DistanceAttention, LevitAttentionSubsample):
    """LevitAttentionSubsample on relattn."""

    def forward(self, hidden_state: Float[Tensor, "B L width"]) -> Float[Tensor, "B coarse out"]:
        """The output, under LevitAttentionSubsample's arguments."""
        widths = [self.key_dim, self.attention_ratio * self.key_dim]
        (together,) = projected(hidden_state, (self.keys_values,), sum(widths))
        key, value = together.split(widths, dim=3)
        (query,) = projected(self.queries_subsample(hidden_state), (self.queries,), self.key_dim)
        return self.attended(query, key, value, self.queries_subsample.stride)


@lru_cache(maxsize=16)
def _strided(side: int, stride: int) -> dict[str, GridPositions]:
    """A square grid of every stride-th row and column."""
    y, x = YX
    return {y: GridPositions(((stride, side, side),)), x: GridPositions(((stride, 1, side),))}


def _terms(biases: Float[Tensor, "H side*side"], side: int, reach: int) -> ScoreTerms:
    """b[dy, dx] = biases[|dy| * side + |dx|] for the offsets -reach .. side - 1 on both axes."""
    distances = torch.arange(-reach, side, device=biases.device).abs()
    rows = gather_rows(biases, (distances.unsqueeze(1) * side + distances).flatten())
    first = -reach * (distances.shape[0] + 1)
    return ScoreTerms(bias=OffsetTable(rows, first, "error")).on(*YX)


REPLACEMENTS = {LevitAttention: RelattnLevitAttention, LevitAttentionSubsample: RelattnLevitAttentionSubsample}
"""The module of transformers, and its replacement."""
