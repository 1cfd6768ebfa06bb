"""Chunks: frames that see whole chunks, described by the numbers of the chunks instead of a mask of pairs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from jaxtyping import Bool
from torch import Tensor

from relattn.equation.terms import ScoreTerms
from relattn.hf.masks import MaskStructure
from relattn.positions.grid import GridPositions

FRAMES = "frames"
"""The axis of relative positions, if the sequence counts chunks."""


@dataclass(frozen=True)
class Chunks(MaskStructure):
    """Frame i sees frame j where 0 <= i // size - j // size <= left; left=None: where 0 <= i // size - j // size.

    query_position, key_position: the numbers i and j of the first query and key; the last query and the last key are
        the same frame. The positions on the sequence are the chunks, with the window `left`.
    """

    query_position: int = 0
    key_position: int = 0
    size: int = 1
    left: int | None = None

    def keywords(self) -> dict[str, Any]:
        """As arguments of `relative_attention`, for terms that `placed` made."""
        queries, keys = self.lengths
        return {
            **super().keywords(),
            "query_position": {"sequence": self._numbers(self.query_position, queries), FRAMES: keys - queries},
            "key_position": {"sequence": self._numbers(self.key_position, keys), FRAMES: 0},
            "window": (self.left, 0),
        }

    def queries_without_keys(self) -> Bool[Tensor, "B Lq"] | None:
        """The queries whose chunks hold only padding; None without padding, because then every query sees itself."""
        if self.key_mask is None:
            return None
        queries, keys = self.lengths
        chunk = (torch.arange(queries, device=self.key_mask.device) + self.query_position) // self.size
        first = chunk * 0 if self.left is None else (chunk - self.left) * self.size - self.key_position
        end = (chunk + 1) * self.size - self.key_position
        before = F.pad(self.key_mask.cumsum(dim=1), (1, 0))  # the number of real keys before each key
        return before[:, end.clamp(0, keys)] == before[:, first.clamp(0, keys)]

    def _numbers(self, start: int, length: int) -> GridPositions:
        """The number of each frame's chunk."""
        return GridPositions(((1, self.size, (start + length) // self.size + 1),), first=start)


def placed(terms: ScoreTerms | None, structure: MaskStructure) -> ScoreTerms | None:
    """The terms on the axis of frames where the structure has one."""
    return terms.on(FRAMES) if terms is not None and isinstance(structure, Chunks) else terms
