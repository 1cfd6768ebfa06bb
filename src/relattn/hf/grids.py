"""Where the patches of an image stand, and the bias tables that models keep of their joint offsets."""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache

from jaxtyping import Float
from torch import Tensor, nn

from relattn.encodings.grid import YX, GridBias
from relattn.hf.masks import MaskStructure
from relattn.score.digits import Digits, grid


class HeldGridBias(GridBias):
    """GridBias of a table that a model holds, or makes anew in each call.

    bias [prod(2 s - 1), H], in the order of `GridBias.bias`, which is Swin's and BEiT's; or three rows more, those of a
    class token.
    """

    def __init__(self, bias: Float[Tensor, "rows H"], sizes: tuple[int, int]) -> None:
        nn.Module.__init__(self)
        self._set_grid(sizes, YX)
        self.num_heads = bias.shape[1]
        self.extra = bias.shape[0] - self.num_rows
        self.bias = bias  # pyright: ignore[reportAttributeAccessIssue]


def on_grid(structure: MaskStructure, sizes: tuple[int, int], leading: int = 0) -> MaskStructure:
    """The same masks, with queries and keys on a grid, behind so many tokens that stand nowhere."""
    where = _places(sizes, leading)
    return replace(structure, query_position=where, key_position=where)


@lru_cache(maxsize=64)
def _places(sizes: tuple[int, int], leading: int) -> dict[str, Digits]:
    return grid(*sizes, leading=leading)
