"""Call: one problem as flat tensors and numbers, the form in which the kernels take it.

S_ij  =  cap( scale * ( q_i . k_j  +  r_i . RK[d]  +  RQ[d] . k_j )  +  b[d] )  +  a_j - c_i  +  M_ij
cap(S)  =  softcap * tanh(S / softcap)
O_i   =  sum_j softmax(S)_ij * ( v_j + RV[d] ),   d = offset + j - i

The axes of `ExplicitAxis` add the same terms of their own offsets, d = p(j) - p(i).
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property, partial
from typing import NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from relattn.backends.problem_operator import Forward
from relattn.backends.triton.host.replay import new_memory
from relattn.equation.problem import Part
from relattn.equation.visible_ranges import VisibleRanges
from relattn.positions.position import Position

WIDEST = 256  # widths of heads and tables: a row of a tile must lie on chip
FARTHEST = 2**30  # offsets are 32-bit numbers in the kernels, and so are sums of two


class Table(NamedTuple):
    """The rows of the offsets first .. first + R - 1; one head for all query heads, or one for each.

    values: [Hq or 1, R, width]; a bias: [Hq or 1, R]. first: a 0-d tensor for a table made over the call's own offsets
    where their origin is a tensor. zero: beyond the table nothing is added; else its edge row.
    """

    values: Float[Tensor, "H R *width"]
    first: int | Int[Tensor, ""]
    zero: bool


class ExplicitAxis(NamedTuple):
    """An axis on which every token has its own position, and what its offsets add.

    number: that of the axis in the problem, for the names of its gradients. queries, keys: where they stand.
    relative_query: None where it is the query. lowest, highest: the limits of visible offsets, as in `Call`.
    """

    number: int
    queries: Position
    keys: Position
    relative_query: Float[Tensor, "B Hq Lq Dr"] | None = None
    relative_keys: Table | None = None
    relative_queries: Table | None = None
    relative_values: Table | None = None
    bias: Table | None = None
    lowest: int | None = None
    highest: int | None = None


@dataclass(frozen=True)
class Call:
    """One call: tensors on one device, of any strides; None is absent.

    relative_query: None where it is the query.
    offset: the offset of query 0 and key 0; a 0-d tensor is never read on the host. lowest, highest: the limits of
        visible offsets, both included; None: no limit.
    pair_mask: boolean, True attends; or M, floats that are added to the scores, -inf forbids.
    key_bias a, key_shift c: float32; lse is that of the scores less c. softcap: None for none.
    seed: where dropout_p > 0, a number that decides which weights are dropped. part: where the call stands in the one
        whose pairs dropout counts.
    in_float32: whether the output is in float32, whatever the query is in.
    precision: of products of float32 with float32, "ieee" or "tf32x3".
    for_backward: whether a backward pass follows, which multiplies in tiles.
    visible: what key mask, segments and pair mask leave to walk over; None: everything.
    axes: those on which every token has its own position. Where the sequence is one of them, its limits stand there,
        and offset means nothing.
    """

    query: Float[Tensor, "B Hq Lq D"]
    key: Float[Tensor, "B Hk Lk D"]
    value: Float[Tensor, "B Hk Lk Dv"]
    relative_query: Float[Tensor, "B Hq Lq Dr"] | None
    relative_keys: Table | None
    relative_queries: Table | None
    relative_values: Table | None
    bias: Table | None
    offset: int | Int[Tensor, ""]
    lowest: int | None
    highest: int | None
    key_mask: Bool[Tensor, "B Lk"] | None
    query_segments: Int[Tensor, "B Lq"] | None
    key_segments: Int[Tensor, "B Lk"] | None
    pair_mask: Bool[Tensor, "#B #Hq #Lq #Lk"] | Float[Tensor, "#B #Hq #Lq #Lk"] | None
    key_bias: Float[Tensor, "B Hq Lk"] | None
    key_shift: Float[Tensor, "B Hq Lq"] | None
    seed: Int[Tensor, ""] | None
    part: Part
    scale: float
    softcap: float | None
    dropout_p: float
    in_float32: bool
    precision: str
    for_backward: bool = False
    visible: VisibleRanges | None = None
    axes: tuple[ExplicitAxis, ...] = ()

    @cached_property
    def adds_mask(self) -> bool:
        """Whether the pair mask is added to the scores."""
        return self.pair_mask is not None and self.pair_mask.is_floating_point()

    @property
    def explicit_sequence(self) -> ExplicitAxis | None:
        """The sequence, where it is one of the axes."""
        return self.axes[0] if self.axes and self.axes[0].number == 0 else None

    @property
    def output_dtype(self) -> torch.dtype:
        """Of O."""
        return torch.float32 if self.in_float32 else self.query.dtype

    @cached_property
    def visible_offsets(self) -> tuple[int, int]:
        """The lowest and the highest offset that a pair may have.

        Where the origin is a tensor they are less the origin, and no limit cuts them.
        """
        if isinstance(self.offset, Tensor):
            return 1 - self.query.shape[2], self.key.shape[2] - 1
        lowest = self.offset - (self.query.shape[2] - 1)
        highest = self.offset + self.key.shape[2] - 1
        lowest = lowest if self.lowest is None else max(lowest, self.lowest)
        return lowest, highest if self.highest is None else min(highest, self.highest)


def answers_of(call: Call) -> Forward:
    """Memory for the answers: O in the dtype of the query or in float32, the others in float32."""
    rows = call.query.shape[:3]
    make = partial(new_memory, call.query, rows)
    return Forward(new_memory(call.query, (*rows, call.value.shape[3]), call.output_dtype), make(), make(), make())
