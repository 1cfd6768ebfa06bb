"""A part of a problem: all of its queries, and some of its keys."""

from __future__ import annotations

from jaxtyping import Float
from torch import Tensor

from relattn.score.position import Run
from relattn.score.problem import Axis, Problem


def part_of(
    problem: Problem, keys: slice, key: Float[Tensor, "B Hk n D"], value: Float[Tensor, "B Hk n Dv"]
) -> Problem:
    """The problem of all queries and of the keys numbered `keys`, which `key` and `value` hold.

    Tables over the offsets of the sequence come as the rows alone that these pairs meet.
    """
    axes = tuple(_axis(axis, problem.query.shape[2], keys) for axis in problem.axes)
    key_bias, counted = problem.key_bias, problem.counted()
    return problem.replaced(
        key=key,
        value=value,
        axes=axes,
        mask=problem.mask.part(slice(0, problem.query.shape[2]), keys),
        key_bias=None if key_bias is None else key_bias[..., keys],
        part=counted._replace(key=counted.key + keys.start),
    )


def sees(problem: Problem, keys: slice) -> bool:
    """Whether offsets let any query see any of the keys; True where positions are listed, which are not read."""
    positions = problem.sequence().positions
    if positions.known_origin is None:
        return keys.start < keys.stop
    first, last = positions.part(slice(0, problem.query.shape[2]), keys).visible
    return bool(first <= last)


def _axis(axis: Axis, queries: int, keys: slice) -> Axis:
    positions = axis.positions.part(slice(0, queries), keys)
    if not (isinstance(positions.query, Run) and isinstance(positions.key, Run)):
        return axis.replaced(positions=positions)
    first, last = positions.visible
    assert isinstance(first, int) and isinstance(last, int)  # starts are ints where a sequence is split
    tables = {name: table.narrowed(first, max(last - first + 1, 1)) for name, table in axis.tables().items()}
    return axis.replaced(positions=positions, **tables)
