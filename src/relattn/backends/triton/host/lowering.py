"""A problem as a Call: one dtype for what is multiplied, positions as starts, tensors or digits."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from relattn.backends.triton.host.call import Call, ExplicitAxis, Table
from relattn.equation.key_bias import lowered
from relattn.equation.problem import TABLES, Axis, Problem
from relattn.equation.visible_blocks import SIZE
from relattn.equation.visible_ranges import VisibleRanges

PAIRS_OF_RANGES = 2**20
"""With fewer pairs, over all heads, the kernels need less time than the operations that find what is visible."""


def call_of(problem: Problem, seed: Tensor | None) -> Call:
    """The problem as the kernels take it; seed: where it drops weights.

    Inputs of several dtypes are converted to the dtype that can hold all of them. A table is in that dtype, or in
    float32.
    """
    first, *others = problem.axes
    positions, mask = first.positions, problem.mask
    dtype = torch.promote_types(torch.promote_types(problem.query.dtype, problem.key.dtype), problem.value.dtype)
    for axis in problem.axes:
        if axis.relative_query is not None:
            dtype = torch.promote_types(dtype, axis.relative_query.dtype)
    axes = []
    for number, axis in enumerate(others, start=1):
        if axis.tables():
            axes.append(_explicit_axis(axis, number, dtype))
    limits = {"lowest": positions.lowest, "highest": positions.highest}
    if positions.origin is None:
        axes.insert(0, _explicit_axis(first, 0, dtype)._replace(**limits))
        on_sequence: dict[str, Any] = dict.fromkeys(("relative_query", *TABLES, *limits)) | {"offset": 0}
    else:
        on_sequence = _terms(first, dtype) | limits | {"offset": positions.origin}
    segments = mask.segments or (None, None)
    hides_by_data = positions.origin is None or not mask.key_mask is mask.segments is mask.pairs is None
    key_bias, key_shift = (None, None) if problem.key_bias is None else _key_bias(problem)
    pair_mask = mask.pairs
    if pair_mask is not None and pair_mask.dtype == torch.float64:
        pair_mask = pair_mask.to(torch.float32)
    return Call(
        query=problem.query.to(dtype), key=problem.key.to(dtype), value=problem.value.to(dtype), **on_sequence,
        key_mask=mask.key_mask, query_segments=segments[0], key_segments=segments[1],
        pair_mask=pair_mask, key_bias=key_bias, key_shift=key_shift, seed=seed,
        part=problem.dropout_origin(), scale=problem.scale, softcap=problem.softcap, dropout_p=problem.dropout_p,
        in_float32=problem.output_dtype == torch.float32, precision=_precision(problem, dtype, is_explicit=bool(axes)),
        for_backward=problem.for_backward, visible=_visible(problem) if hides_by_data else None, axes=tuple(axes),
    )  # fmt: skip


def _visible(problem: Problem) -> VisibleRanges | None:
    """None where no data hides a pair, for few pairs, and where the keys are few."""
    if problem.key.shape[2] <= SIZE or problem.num_pairs() < PAIRS_OF_RANGES:
        return None
    return VisibleRanges.of(problem.mask, has_bias=problem.has_bias())


def _explicit_axis(axis: Axis, number: int, dtype: torch.dtype) -> ExplicitAxis:
    return ExplicitAxis(number, axis.positions.query, axis.positions.key, **_terms(axis, dtype))


def _terms(axis: Axis, dtype: torch.dtype) -> dict[str, Any]:
    """r and the tables. r means nothing without relative keys.

    A table that refuses is never read beyond its rows. So it does not matter that its edge row would hold there.
    """
    r, terms = axis.relative_query, {}
    terms["relative_query"] = None if r is None or axis.relative_keys is None else r.to(dtype)
    for name, table in zip(TABLES, axis[2:], strict=True):
        terms[name] = None
        if table is not None:
            values = table.values if table.values.dtype == dtype else table.values.to(torch.float32)
            terms[name] = Table(values, table.first, table.beyond == "zero")
    return terms


WIDEST_IN_PARTS = 64


def _precision(problem: Problem, dtype: torch.dtype, *, is_explicit: bool) -> str:
    """Of products of float32 with float32: "ieee", or "tf32x3" where less than the highest precision is asked for.

    Two parts of every factor fit in registers up to WIDEST_IN_PARTS features, beside no table but a bias of starts.
    is_explicit: whether there is an explicit axis.
    """
    if is_explicit or dtype != torch.float32 or problem.axes[0][2:5] != (None, None, None):
        return "ieee"
    fits = max(problem.query.shape[3], problem.value.shape[3]) <= WIDEST_IN_PARTS
    return "tf32x3" if fits and not highest_is_asked_for() else "ieee"


def highest_is_asked_for() -> bool:
    """PyTorch's setting."""
    try:
        return torch.get_float32_matmul_precision() == "highest"
    except RuntimeError:  # it has no answer where its newer settings are mixed in
        return True


def _key_bias(problem: Problem) -> tuple[Tensor, Tensor]:
    """a [B, Hq, Lk] and c [B, Hq, Lq] of `key_bias.lowered`."""
    a, c = lowered(problem)
    rows = problem.query.shape[:3]
    return a.expand(*rows[:2], a.shape[2]), c.expand(rows)
