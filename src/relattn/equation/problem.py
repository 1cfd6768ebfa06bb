"""Problem: everything that a backend receives; Differentiable: one for each of its tensors that may have a gradient.

The same tree holds these tensors, whether their gradients are wanted, and the gradients.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Generic, NamedTuple, TypeVar

import torch
from jaxtyping import Float
from torch import Tensor

from relattn.equation.mask import Mask
from relattn.equation.tables import OffsetTable
from relattn.positions.positions import Positions

T = TypeVar("T")

TABLES = ("relative_keys", "relative_queries", "relative_values", "bias")


class Axis(NamedTuple):
    """One coordinate: where queries and keys stand on it, and the rows that its offsets add.

    relative_query r [B, Hq, Lq, Dr]: multiplied with the relative keys RK; None means q itself. relative_queries RQ,
    relative_values RV, bias b: None where the equation lacks the term.
    """

    positions: Positions
    relative_query: Float[Tensor, "B Hq Lq Dr"] | None = None
    relative_keys: OffsetTable | None = None
    relative_queries: OffsetTable | None = None
    relative_values: OffsetTable | None = None
    bias: OffsetTable | None = None

    def tables(self) -> dict[str, OffsetTable]:
        """The offset tables that the axis has, by name."""
        tables = {}
        for name, table in zip(TABLES, self[2:], strict=True):
            if table is not None:
                tables[name] = table
        return tables

    def replace(self, **changes: Any) -> Axis:
        """The axis with other fields. torch.compile of torch 2.8 does not trace _replace."""
        return Axis(**{**{name: getattr(self, name) for name in Axis._fields}, **changes})


class Part(NamedTuple):
    """Where the first query, key and head of a problem stand in a whole call with `heads` query heads.

    Dropout counts pairs in the whole call.
    """

    query: int
    key: int
    head: int
    heads: int


class Problem(NamedTuple):
    """One call of relative attention, checked and lowered: the equation's symbols under their names in the code.

    query q [B, Hq, Lq, D], key k [B, Hk, Lk, D], value v [B, Hk, Lk, Dv], Hk divides Hq; q and k as the encoding left
    them.
    axes: the coordinates, each with its positions and tables. The first is the sequence, which alone decides causality
        and window.
    output_dtype: the dtype of the caller's query, in which the output is returned.
    softcap, key_bias a: S becomes softcap * tanh(S / softcap) + a_j, before any mask. sinks [Hq] or [B, Hq, Lq]: for
        `sinks.share`; `call.py` multiplies outputs with it.
    part: where the problem stands in the whole call; None where it is the whole call. seed: the seed of dropout, where
        the parts of a call share one, or where a draw is repeated; None where the backend draws it. key_shift: c of
        `key_bias.lowered`, where the parts of a call share it. for_backward: whether a backward pass follows, for the
        kernels of an operator, which see no graph.
    """

    query: Float[Tensor, "B Hq Lq D"]
    key: Float[Tensor, "B Hk Lk D"]
    value: Float[Tensor, "B Hk Lk Dv"]
    axes: tuple[Axis, ...]
    mask: Mask
    scale: float
    output_dtype: torch.dtype
    dropout_p: float = 0.0
    return_lse: bool = False
    softcap: float | None = None
    key_bias: Float[Tensor, "#B #Hq Lk"] | None = None
    sinks: Float[Tensor, "Hq"] | Float[Tensor, "B Hq Lq"] | None = None
    part: Part | None = None
    seed: int | None = None
    key_shift: Float[Tensor, "#B #Hq #Lq"] | None = None
    for_backward: bool = False

    def replace(self, **changes: Any) -> Problem:
        """The problem with other fields, as `Axis.replace`."""
        return Problem(**{**{name: getattr(self, name) for name in Problem._fields}, **changes})

    def sequence(self) -> Axis:
        """The first axis."""
        return self.axes[0]

    def has_tables(self) -> bool:
        """Whether any axis has a table. Without one the offsets add nothing."""
        return any(table is not None for axis in self.axes for table in axis[2:])

    def has_bias(self) -> bool:
        """Whether a bias or a key bias is added to scores."""
        return self.key_bias is not None or any(axis.bias is not None for axis in self.axes)

    def asks_for_gradient(self) -> bool:
        """Whether autograd records the call: it is on, and a tensor of the problem requires a gradient."""
        if not torch.is_grad_enabled():
            return False
        return any(tensor is not None and tensor.requires_grad for tensor in self.leaves())

    def leaves(self) -> list[Tensor | None]:
        """The tensors that may have a gradient, in the order of `Differentiable.leaves`; None where one is absent."""
        leaves = [self.query, self.key, self.value, self.mask.pairs, self.key_bias]
        for axis in self.axes:
            leaves.append(axis.relative_query)
            for table in axis[2:]:
                leaves.append(None if table is None else table.values)
        return leaves

    def with_leaves(self, leaves: Sequence[Tensor | None]) -> Problem:
        """The problem with other tensors in place of its leaves; one for which None is given stays."""
        given = Differentiable.of([old if new is None else new for old, new in zip(self.leaves(), leaves, strict=True)])
        axes = []
        for axis, one in zip(self.axes, given.axes, strict=True):
            tables = [
                None if table is None or values is None else replace(table, values=values)
                for table, values in zip(axis[2:], one.tables, strict=True)
            ]
            axes.append(Axis(axis.positions, one.relative_query, *tables))
        query, key, value, pairs, key_bias, _ = given
        mask = replace(self.mask, pairs=pairs)
        return self.replace(query=query, key=key, value=value, axes=tuple(axes), mask=mask, key_bias=key_bias)

    def score_dtype(self) -> torch.dtype:
        """The dtype of scores, softmax and all accumulation: float64 for float64 inputs, else float32."""
        return torch.float64 if self.output_dtype == torch.float64 else torch.float32

    def axisless_terms(self) -> list[str]:
        """Which of softcap, key bias and sinks the problem has."""
        if self.softcap is None and self.key_bias is None and self.sinks is None:
            return []
        given = (("softcap", self.softcap), ("key bias", self.key_bias), ("sinks", self.sinks))
        return [name for name, value in given if value is not None]

    def dropout_origin(self) -> Part:
        """Where the problem stands in the call in which dropout counts the pairs."""
        return Part(0, 0, 0, self.query.shape[1]) if self.part is None else self.part

    def with_values(self, lse: Float[Tensor, "B Hq Lq"]) -> Float[Tensor, "B Hq Lq"]:
        """lse, for which v and RV have the gradient 0, as in a backend that is one operator: they do not change it."""
        tables = (axis.relative_values for axis in self.axes)
        for tensor in (self.value, *(table.values for table in tables if table is not None)):
            if tensor.requires_grad:
                lse = lse + tensor[..., :0].sum()
        return lse

    def num_pairs(self) -> int:
        """The number of pairs of queries and keys, over all heads of the batch."""
        batch, heads, queries, _ = self.query.shape
        return batch * heads * queries * self.key.shape[2]

    def num_groups(self) -> int:
        """The number of query heads that share one key head."""
        return self.query.shape[1] // self.key.shape[1]


class PerTable(NamedTuple, Generic[T]):
    """One for each table of an axis, in the order of TABLES."""

    keys: T
    queries: T
    values: T
    bias: T


class PerAxis(NamedTuple, Generic[T]):
    """One for what an axis has: its own r, and the values of its tables."""

    relative_query: T
    tables: PerTable[T]


class Differentiable(NamedTuple, Generic[T]):
    """One for each tensor of a problem that may have a gradient."""

    query: T
    key: T
    value: T
    pair_mask: T
    key_bias: T
    axes: Sequence[PerAxis[T]]

    @classmethod
    def of(cls, leaves: Sequence[T]) -> Differentiable[T]:
        """The tree of these leaves, in the order of `leaves`."""
        axes = []
        for n in range(5, len(leaves), 5):
            axes.append(PerAxis(leaves[n], PerTable(*leaves[n + 1 : n + 5])))
        query, key, value, pair_mask, key_bias = leaves[:5]
        return cls(query, key, value, pair_mask, key_bias, axes)

    def leaves(self) -> list[T]:
        """Those beside the axes, then r and the tables of each axis."""
        leaves = list(self[:5])
        for relative_query, tables in self.axes:
            leaves += [relative_query, *tables]
        return leaves


Gradients = Differentiable[Tensor | None]
