"""A part of a problem: some of its queries, and some of its keys."""

from __future__ import annotations

from jaxtyping import Float
from torch import Tensor

from relattn.equation.key_bias import lowered
from relattn.equation.mask import part_of_axes
from relattn.equation.problem import Axis, Problem


def part_of(
    problem: Problem,
    queries: slice,
    keys: slice,
    key: Float[Tensor, "b h n D"],
    value: Float[Tensor, "b h n Dv"],
    heads: slice = slice(None),
    batch: int | None = None,
) -> Problem:
    """The problem with the queries numbered `queries` and the keys numbered `keys`, which `key` and `value` hold.

    heads: the query heads of the part, which share the heads of `key`. batch: its element of the batch; None for all.
    Tables have only the rows that these pairs need, where that is known without a wait. All tensors are views.
    """
    one = slice(None) if batch is None else slice(batch, batch + 1)
    rows, key_bias, counted = (one, heads, queries), problem.key_bias, problem.dropout_origin()
    return problem.replace(
        query=problem.query[rows],
        key=key,
        value=value,
        axes=tuple(_axis(axis, queries, keys, heads, batch) for axis in problem.axes),
        mask=problem.mask.part(queries, keys, heads, batch),
        key_bias=None if key_bias is None else part_of_axes(key_bias, one, heads, keys),
        key_shift=None if key_bias is None else part_of_axes(lowered(problem)[1], *rows),
        part=counted._replace(
            query=counted.query + queries.start,
            key=counted.key + keys.start,
            head=counted.head + (batch or 0) * counted.heads + (heads.start or 0),
        ),
    )


def _axis(axis: Axis, queries: slice, keys: slice, heads: slice, batch: int | None) -> Axis:
    positions, r = axis.positions.part(queries, keys, batch), axis.relative_query
    if r is not None:
        r = r[slice(None) if batch is None else slice(batch, batch + 1), heads, queries]
    tables = {name: table.of_heads(heads).rows_met_by(positions) for name, table in axis.tables().items()}
    return axis.replace(positions=positions, relative_query=r, **tables)
