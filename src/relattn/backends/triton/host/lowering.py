"""A problem as a Call: one dtype for what is multiplied, positions as starts, lists or digits."""

from __future__ import annotations

from functools import reduce
from typing import Any

import torch
from torch import Tensor

from relattn.backends.triton.host.call import Call, ListedAxis, Table
from relattn.equation.key_bias import lowered
from relattn.equation.problem import TABLES, Axis, Problem
from relattn.equation.tables import OffsetTable


def call_of(problem: Problem, seed: Tensor | None) -> Call:
    """The problem as the kernels take it; seed: where it drops weights.

    Inputs of several dtypes are converted to the dtype that can hold all of them. A table is in that dtype, or in
    float32.
    """
    first, *others = problem.axes
    positions, mask = first.positions, problem.mask
    inputs = [problem.query, problem.key, problem.value, *(axis.relative_query for axis in problem.axes)]
    dtype = reduce(torch.promote_types, [tensor.dtype for tensor in inputs if tensor is not None])
    listed = [_listed(axis, n, dtype) for n, axis in enumerate(others, start=1) if axis.tables()]
    limits = {"lowest": positions.lowest, "highest": positions.highest}
    if positions.origin is None:
        listed.insert(0, _listed(first, 0, dtype)._replace(**limits))
        of_runs: dict[str, Any] = dict.fromkeys(("relative_query", *TABLES, *limits)) | {"offset": 0}
    else:
        of_runs = _terms(first, dtype) | limits | {"offset": positions.origin}
    segments = mask.segments or (None, None)
    key_bias, key_shift = _key_bias(problem)
    return Call(
        query=problem.query.to(dtype), key=problem.key.to(dtype), value=problem.value.to(dtype), **of_runs,
        key_mask=mask.key_mask, query_segments=segments[0], key_segments=segments[1],
        explicit_mask=_explicit(mask.pairs), key_bias=key_bias, key_shift=key_shift, seed=seed,
        part=problem.dropout_origin(), scale=problem.scale, softcap=problem.softcap, dropout_p=problem.dropout_p,
        in_float32=problem.output_dtype == torch.float32, precision=_precision(problem, dtype),
        for_backward=problem.for_backward, axes=tuple(listed),
    )  # fmt: skip


def _listed(axis: Axis, number: int, dtype: torch.dtype) -> ListedAxis:
    return ListedAxis(number, axis.positions.query, axis.positions.key, **_terms(axis, dtype))


def _terms(axis: Axis, dtype: torch.dtype) -> dict[str, Any]:
    """r and the tables. r means nothing without relative keys."""
    r = axis.relative_query
    terms: dict[str, Any] = {"relative_query": None if r is None or axis.relative_keys is None else r.to(dtype)}
    return terms | {name: _table(getattr(axis, name), dtype) for name in TABLES}


def _table(table: OffsetTable | None, dtype: torch.dtype) -> Table | None:
    """A table that refuses is never read beyond its rows. So it does not matter that its edge row would hold there."""
    if table is None:
        return None
    values = table.values if table.values.dtype == dtype else table.values.to(torch.float32)
    return Table(values, table.first, table.beyond == "zero")


WIDEST_IN_PARTS = 64


def _precision(problem: Problem, dtype: torch.dtype) -> str:
    """Of products of float32 with float32: "ieee", or "tf32x3" where less than the highest precision is asked for.

    Two parts of every factor fit in registers up to WIDEST_IN_PARTS features, beside no table but a bias of starts.
    """
    first, *others = problem.axes
    plain = first.positions.origin is not None and not any(axis.tables() for axis in others)
    fits = plain and set(first.tables()) <= {"bias"} and problem.value.shape[3] <= WIDEST_IN_PARTS
    fits = fits and dtype == torch.float32 and problem.query.shape[3] <= WIDEST_IN_PARTS
    return "tf32x3" if fits and not _highest_is_asked_for() else "ieee"


def _highest_is_asked_for() -> bool:
    """PyTorch's setting."""
    try:
        return torch.get_float32_matmul_precision() == "highest"
    except RuntimeError:  # it has no answer where its newer settings are mixed in
        return True


def _explicit(mask: Tensor | None) -> Tensor | None:
    """A boolean mask as it is, a float one in a dtype of the kernels."""
    return mask.to(torch.float32) if mask is not None and mask.dtype == torch.float64 else mask


def _key_bias(problem: Problem) -> tuple[Tensor | None, Tensor | None]:
    """a [B, Hq, Lk] and c [B, Hq, Lq] of `key_bias.lowered`."""
    if problem.key_bias is None:
        return None, None
    a, c = lowered(problem)
    rows = problem.query.shape[:3]
    return a.expand(*rows[:2], a.shape[2]), c.expand(rows)
