"""A part of a problem: some of its queries, and some of its keys."""

from __future__ import annotations

from jaxtyping import Float
from torch import Tensor

from relattn.equation.key_bias import lowered
from relattn.equation.problem import Axis, Problem
from relattn.positions.contiguous import ContiguousPositions


def part_of(
    problem: Problem, queries: slice, keys: slice, key: Float[Tensor, "B Hk n D"], value: Float[Tensor, "B Hk n Dv"]
) -> Problem:
    """The problem with the queries numbered `queries` and the keys numbered `keys`, which `key` and `value` hold.

    Tables over the offsets of the sequence have only the rows that these pairs need.
    """
    key_bias, key_shift, counted = problem.key_bias, None, problem.dropout_origin()
    if key_bias is not None:
        shift = lowered(problem)[1]
        key_shift = shift if shift.shape[2] == 1 else shift[..., queries]
    return problem.replace(
        query=problem.query[:, :, queries],
        key=key,
        value=value,
        axes=tuple(_axis(axis, queries, keys) for axis in problem.axes),
        mask=problem.mask.part(queries, keys),
        key_bias=None if key_bias is None else key_bias[..., keys],
        key_shift=key_shift,
        part=counted._replace(query=counted.query + queries.start, key=counted.key + keys.start),
    )


def _axis(axis: Axis, queries: slice, keys: slice) -> Axis:
    positions, r = axis.positions.part(queries, keys), axis.relative_query
    cut = axis.replace(positions=positions, relative_query=None if r is None else r[:, :, queries])
    if not (isinstance(positions.query, ContiguousPositions) and isinstance(positions.key, ContiguousPositions)):
        return cut
    first, last = positions.visible
    assert isinstance(first, int) and isinstance(last, int)  # starts are ints where a sequence is split
    tables = {name: table.narrowed(first, max(last - first + 1, 1)) for name, table in axis.tables().items()}
    return cut.replace(**tables)
