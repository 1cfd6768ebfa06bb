"""Where the patches of an image stand, and the bias tables that models keep of their joint offsets."""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache

from jaxtyping import Float
from torch import Tensor

from relattn.encodings.grid import YX, joint_bias
from relattn.equation.terms import ScoreTerms
from relattn.hf.masks import MaskStructure
from relattn.positions.grid import GridPositions, grid


def grid_terms(bias: Float[Tensor, "rows H"], sizes: tuple[int, int]) -> ScoreTerms:
    """b[dy, dx] over a whole grid, from a table that a model holds or makes again in each call.

    bias [(2 height - 1) (2 width - 1), H], in the order of `GridBias.bias`, which is Swin's and BEiT's; with a class
    token three rows more.
    """
    height, width = sizes
    count = (2 * height - 1) * (2 * width - 1)
    return joint_bias(bias[:count].flip(0), -(count // 2), bias[count:]).on(*YX)


def on_grid(structure: MaskStructure, sizes: tuple[int, int], prefix_tokens: int = 0) -> MaskStructure:
    """The same masks, with queries and keys on a grid, after so many tokens that stand off the grid."""
    where = places(sizes, prefix_tokens)
    return replace(structure, query_position=where, key_position=where)


@lru_cache(maxsize=64)
def places(sizes: tuple[int, int], prefix_tokens: int = 0) -> dict[str, GridPositions]:
    """`grid`, kept because every layer of a model asks for it."""
    return grid(*sizes, prefix_tokens=prefix_tokens)
