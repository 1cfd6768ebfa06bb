"""ScoreTerms: the terms of the score equation that an encoding contributes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from relattn.checks.values import kind_of
from relattn.equation.problem import TABLES
from relattn.equation.tables import OffsetTable, add_tables, join_tables
from relattn.errors import ShapeError, UnsupportedError

NO_AXES: Mapping[tuple[str, ...], ScoreTerms] = {}  # no MappingProxyType: torch.compile takes an empty one for true


@dataclass(frozen=True)
class ScoreTerms:
    """S_ij = scale * (q_i . k_j + r_i . RK[d] + RQ[d] . k_j) + b[d];  O_i = sum_j softmax(S)_ij * (v_j + RV[d]).

    query [B, Hq, Lq, D], key [B, Hk, Lk, D]: rewritten q and k; None keeps the call's own.
    relative_query r: [B, Hq, Lq, Dr], of any width Dr; None means the caller's own query, before any encoding rewrote
        it.
    relative_keys RK, relative_queries RQ, relative_values RV, bias b: OffsetTables of values [Hq or 1, R, Dr],
        [Hq or 1, R, D], [Hq or 1, R, Dv] and [Hq or 1, R]; None where the equation lacks the term.
    axes: the terms on axes other than the sequence, by the name of the axis or, for joint offsets, the names of the
        axes. Their query and key are None, because a rewriting belongs to the whole call. `on` makes these terms.
    has_prefix_rows: whether the tables of terms on a grid have rows for the tokens before it. If not, nothing is
        added to pairs with these tokens.

    The sum of two holds the terms of both, axis by axis. Biases, relative queries and relative values add. Relative
    keys over the caller's own query add. For another relative query, the queries and the tables are joined along the
    feature axis.
    """

    query: Float[Tensor, "B Hq Lq D"] | None = None
    key: Float[Tensor, "B Hk Lk D"] | None = None
    relative_query: Float[Tensor, "B Hq Lq Dr"] | None = None
    relative_keys: OffsetTable | None = None
    relative_queries: OffsetTable | None = None
    relative_values: OffsetTable | None = None
    bias: OffsetTable | None = None
    axes: Mapping[tuple[str, ...], ScoreTerms] = field(default_factory=dict)
    has_prefix_rows: bool = False

    def __post_init__(self) -> None:
        for name, tensor in (("query", self.query), ("key", self.key), ("relative_query", self.relative_query)):
            if tensor is not None and not isinstance(tensor, Tensor):
                raise TypeError(f"ScoreTerms {name}: got {kind_of(tensor)}; expected a tensor or None")
        for name in TABLES:
            table, num_axes = getattr(self, name), 2 if name == "bias" else 3
            if table is None:
                continue
            if not isinstance(table, OffsetTable):
                raise TypeError(f"ScoreTerms {name}: got {kind_of(table)}; expected an OffsetTable or None")
            if table.values.dim() != num_axes:
                expected = "[heads or 1, rows]" if num_axes == 2 else "[heads or 1, rows, width]"
                raise ValueError(
                    f"ScoreTerms {name}: got values of shape {tuple(table.values.shape)}; expected {expected}"
                )
        if self.relative_query is not None and self.relative_keys is None:
            raise ValueError(
                "ScoreTerms relative_query: came without relative_keys to multiply it with; give both or neither"
            )

    def on(self, *axes: str) -> ScoreTerms:
        """The same terms on another axis, where d is the offset on that axis; on several axes d is their joint offset.

        Raises ValueError: where the terms already stand on an axis, and for no axis, or the sequence alone.
        """
        if self.axes:
            raise ValueError(f"ScoreTerms on: got terms on {_named(self.axes)}; expected terms of the sequence alone")
        if not axes or not all(isinstance(axis, str) for axis in axes) or axes == ("sequence",):
            raise ValueError(f"ScoreTerms on: got {axes!r}; expected names of axes, one at least other than 'sequence'")
        if self.query is None and self.key is None:
            return ScoreTerms(axes={axes: self} if self.tables else NO_AXES)
        moved = {axes: replace(self, query=None, key=None)} if self.tables else NO_AXES
        return ScoreTerms(query=self.query, key=self.key, axes=moved)

    @property
    def tables(self) -> dict[str, OffsetTable]:
        """The offset tables on the sequence, by name."""
        by_name = {name: getattr(self, name) for name in TABLES}
        return {name: table for name, table in by_name.items() if table is not None}

    def by_axes(self) -> dict[tuple[str, ...], ScoreTerms]:
        """The terms on each axis. The sequence comes first, even without terms."""
        if not self.axes:
            return {("sequence",): self}
        return {("sequence",): replace(self, axes=NO_AXES), **self.axes}

    def __add__(self, other: ScoreTerms) -> ScoreTerms:
        if not isinstance(other, ScoreTerms):
            return NotImplemented
        if self.has_prefix_rows != other.has_prefix_rows and self.tables and other.tables:
            raise ValueError(
                "ScoreTerms sum: got terms with has_prefix_rows=True and others without on the same axes; "
                "expected rows for the tokens before a grid in all of them, or in none"
            )
        axes = NO_AXES
        if self.axes or other.axes:
            both = {names: self.axes[names] + other.axes[names] for names in self.axes.keys() & other.axes.keys()}
            axes = {**self.axes, **other.axes, **both}
        added = {}
        for name in ("query", "key", "relative_queries", "relative_values", "bias"):
            one, another = getattr(self, name), getattr(other, name)
            if one is not None and another is not None:
                added[name] = _added(name, one, another)
            else:
                added[name] = another if one is None else one
        added["relative_query"], added["relative_keys"] = _add_relative_keys(self, other)
        return ScoreTerms(**added, axes=axes, has_prefix_rows=self.has_prefix_rows or other.has_prefix_rows)

    def zeroed_outside(self, first: int, last: int) -> ScoreTerms:
        """The terms for pairs whose offset lies in first .. last. Others, with tokens before a grid, get nothing."""
        count = max(last - first + 1, 1)
        tables = {name: OffsetTable(table.rows(first, count), first, "zero") for name, table in self.tables.items()}
        return replace(self, **tables)


def _named(axes: Mapping[tuple[str, ...], ScoreTerms]) -> str:
    return " and ".join(repr(", ".join(names)) for names in axes)


def _added(name: str, a: Any, b: Any) -> OffsetTable:
    """The sum of two tables; two rewritten queries or keys have none."""
    if name in ("query", "key"):
        raise UnsupportedError(
            f"sum of encodings: both operands rewrite the {name}; no paper defines that, keep one of them"
        )
    return add_tables(a, b)


def _add_relative_keys(a: ScoreTerms, b: ScoreTerms) -> tuple[Tensor | None, OffsetTable | None]:
    """The pair (r, RK) for which r . RK = r_a . RK_a + r_b . RK_b."""
    if a.relative_keys is None:
        return b.relative_query, b.relative_keys
    if b.relative_keys is None:
        return a.relative_query, a.relative_keys
    if a.relative_query is None and b.relative_query is None:
        return None, add_tables(a.relative_keys, b.relative_keys)
    if a.relative_query is None or b.relative_query is None:
        raise ValueError(
            "ScoreTerms sum: got one relative_query that is None (the caller's own query) and one that is a tensor; "
            "expected both of a kind; give the query itself in place of None"
        )
    if a.relative_query.shape[:3] != b.relative_query.shape[:3]:
        raise ShapeError(
            f"ScoreTerms sum: got relative queries {list(a.relative_query.shape)} and {list(b.relative_query.shape)}; "
            "expected the same batch, heads and length"
        )
    return torch.cat([a.relative_query, b.relative_query], dim=-1), join_tables(a.relative_keys, b.relative_keys)
