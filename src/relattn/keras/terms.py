"""ScoreTerms: the terms of the score equation that an encoding contributes."""

from __future__ import annotations

from dataclasses import dataclass

from relattn.errors import UnsupportedError
from relattn.keras.installed import ops
from relattn.keras.table import CombinedTable, Table
from relattn.keras.tensors import Tensor


@dataclass(frozen=True)
class ScoreTerms:
    """S_ij = scale * (q_i . k_j + r_i . RK[d] + RQ[d] . k_j) + b[d];  O_i = sum_j softmax(S)_ij * (v_j + RV[d]).

    query: q, rewritten [B, H, Lq, D]; None keeps the call's own.
    relative_query r: [B, H, Lq, width]; None is the call's own query, before any rewriting.
    relative_keys RK, relative_queries RQ, relative_values RV, bias b: tables, None where the equation lacks the term.

    The sum of two holds the terms of both. Tables add. Relative keys over different relative queries are joined along
    the features.
    """

    query: Tensor | None = None
    relative_query: Tensor | None = None
    relative_keys: Table | None = None
    relative_queries: Table | None = None
    relative_values: Table | None = None
    bias: Table | None = None

    def __add__(self, other: ScoreTerms) -> ScoreTerms:
        if self.query is not None and other.query is not None:
            raise UnsupportedError(
                "sum of encodings: both operands rewrite the query; no paper defines that, keep one of them"
            )
        relative_query, relative_keys = _add_relative_keys(self, other)
        return ScoreTerms(
            query=other.query if self.query is None else self.query,
            relative_query=relative_query,
            relative_keys=relative_keys,
            relative_queries=_add(self.relative_queries, other.relative_queries),
            relative_values=_add(self.relative_values, other.relative_values),
            bias=_add(self.bias, other.bias),
        )


def _add(a: Table | None, b: Table | None) -> Table | None:
    if a is None or b is None:
        return b if a is None else a
    return CombinedTable(a, b)


def _add_relative_keys(a: ScoreTerms, b: ScoreTerms) -> tuple[Tensor | None, Table | None]:
    """The pair (r, RK) for which r . RK = r_a . RK_a + r_b . RK_b."""
    if a.relative_keys is None:
        return b.relative_query, b.relative_keys
    if b.relative_keys is None:
        return a.relative_query, a.relative_keys
    if a.relative_query is None and b.relative_query is None:
        return None, CombinedTable(a.relative_keys, b.relative_keys)
    if a.relative_query is None or b.relative_query is None:
        raise ValueError(
            "ScoreTerms sum: one relative_query is None (the call's own query) and the other is not; give both as "
            "tensors"
        )
    joined = ops.concatenate([a.relative_query, b.relative_query], axis=-1)
    return joined, CombinedTable(a.relative_keys, b.relative_keys, joined=True)
