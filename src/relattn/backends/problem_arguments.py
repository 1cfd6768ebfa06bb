"""A problem as the arguments of an operator, tensors and numbers, and back.

Each part of the sequence has its own argument. The parts of other axes, any number of them, come in lists after those
of the sequence: words and numbers that say what there is, explicit positions, and the tensors that may have gradients.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor

from relattn.equation.mask import Mask
from relattn.equation.problem import TABLES, Axis, Part, Problem
from relattn.equation.tables import OffsetTable
from relattn.positions.contiguous import ContiguousPositions, as_tensor
from relattn.positions.explicit import ExplicitPositions
from relattn.positions.grid import GridPositions
from relattn.positions.position import Position
from relattn.positions.positions import Positions

ARGUMENTS = (
    "Tensor query, Tensor key, Tensor value, Tensor? relative_query, "
    "Tensor? relative_keys, Tensor? relative_queries, Tensor? relative_values, Tensor? bias, Tensor? explicit_mask, "
    "Tensor? key_bias, Tensor? query_positions, Tensor? key_positions, Tensor? starts_tensor, "
    "Tensor? key_mask, Tensor? query_segments, Tensor? key_segments, Tensor? seed, "
    "SymInt[] numbers, str[] words, SymInt? lowest, SymInt? highest, float scale, float dropout_p, "
    "ScalarType output_dtype, float? softcap, bool for_backward, Tensor[]? axis_positions, Tensor[]? axis_tensors"
)
"""axis_positions, axis_tensors: the lists of the other axes. They come last, so that an autograd.Function can flatten
them. A package of AOTInductor hands None over in place of an empty list.
"""
DIFFERENTIABLE: tuple[str, ...] = (
    "query", "key", "value", "relative_query", *TABLES, "explicit_mask", "key_bias",
)  # fmt: skip
"""The tensors that may have a gradient, without those of other axes (`axis_tensor_names`)."""
OF_AN_AXIS = ("relative_query", *TABLES)
NUM_STARTS = 2 + len(TABLES)
NUM_COUNTED = len(Part._fields)

NAMES = [argument.split()[-1] for argument in ARGUMENTS.split(", ")]
NUM_TENSORS = NAMES.index("numbers")
NUM_PLAIN = NAMES.index("axis_positions")
SEED, WORDS = NAMES.index("seed"), NAMES.index("words")


def flat(problem: Problem, seed: Tensor | None) -> tuple[Any, ...]:
    """The problem as the operators' ARGUMENTS.

    numbers: the starts of the queries, of the keys, and of each table, 0 for a tensor; if any is a tensor, a tensor of
        all six is added. Then the place of the pairs for dropout, and the numbers of other axes. words: the rule of
        each table beyond its rows, "" where there is no table. The words of other axes follow.
    """
    axis, positions, mask = problem.sequence(), problem.sequence().positions, problem.mask
    tables = [getattr(axis, name) for name in TABLES]
    query_positions, key_positions, starts = None, None, [0, 0]
    if isinstance(positions.query, ContiguousPositions) and isinstance(positions.key, ContiguousPositions):
        starts = [positions.query.start, positions.key.start]
    else:
        query_positions, key_positions = positions.query_positions(), positions.key_positions()
    starts += [0 if table is None else table.first for table in tables]
    starts_tensor = None
    if any(isinstance(start, Tensor) for start in starts):
        starts_tensor = torch.stack([as_tensor(start, positions.device) for start in starts])
        starts = [0 if isinstance(start, Tensor) else start for start in starts]
    beyond = ["" if table is None else table.beyond for table in tables]
    numbers, words, explicit, axis_tensors = _flat_axes(problem.axes[1:])
    segments = mask.segments or (None, None)
    return (
        problem.query, problem.key, problem.value, axis.relative_query,
        *(None if table is None else table.values for table in tables), mask.pairs, problem.key_bias,
        query_positions, key_positions, starts_tensor, mask.key_mask, *segments, seed,
        [*starts, *problem.dropout_origin(), *numbers], beyond + words, positions.lowest, positions.highest,
        problem.scale, problem.dropout_p, problem.output_dtype, problem.softcap, problem.asks_for_gradient(),
        explicit, axis_tensors,
    )  # fmt: skip


def problem_of(
    query, key, value, relative_query, relative_keys, relative_queries, relative_values, bias,
    explicit_mask, key_bias, query_positions, key_positions, starts_tensor, key_mask, query_segments, key_segments,
    seed, numbers, words, lowest, highest, scale, dropout_p, output_dtype, softcap, for_backward, axis_positions,
    axis_tensors, *, read: bool = True,
) -> Problem:  # fmt: skip
    """The problem from the arguments of `flat`.

    read: whether starts given as tensors are read as ints. Where they are not, the starts of both sides are tensors,
    and so is the first offset of each table that refuses.
    """
    starts, beyond = numbers[:NUM_STARTS], words[: len(TABLES)]
    counted, of_axes = numbers[NUM_STARTS:][:NUM_COUNTED], numbers[NUM_STARTS + NUM_COUNTED :]
    if starts_tensor is not None and read:
        starts = starts_tensor.tolist()
    elif starts_tensor is not None:
        stay = [False, False, *(what in ("clamp", "zero") for what in beyond)]
        starts = [one if stays else starts_tensor[n] for n, (one, stays) in enumerate(zip(starts, stay, strict=True))]
    query_start, key_start, *firsts = starts
    positions = Positions(
        ContiguousPositions(query_start) if query_positions is None else ExplicitPositions(query_positions),
        ContiguousPositions(key_start) if key_positions is None else ExplicitPositions(key_positions),
        query.shape[2], key.shape[2], query.device, lowest, highest,
    )  # fmt: skip
    values = (relative_keys, relative_queries, relative_values, bias)
    tables = {
        name: OffsetTable(rows, first, what)
        for name, rows, first, what in zip(TABLES, values, firsts, beyond, strict=True)
        if rows is not None
    }
    segments = None if query_segments is None else (query_segments, key_segments)
    others = _axes_of(of_axes, words[len(TABLES) :], axis_positions or (), axis_tensors or (), positions)
    return Problem(
        query, key, value, (Axis(positions, relative_query, **tables), *others),
        Mask(positions, key_mask, segments, explicit_mask), scale, output_dtype, dropout_p, return_lse=True,
        softcap=softcap, key_bias=key_bias, part=Part(*counted), for_backward=for_backward,
    )  # fmt: skip


def named(arguments: Sequence[Any]) -> dict[str, Any]:
    """The arguments by their names."""
    return dict(zip(NAMES, arguments, strict=True))


def tensors_of(given: dict[str, Any]) -> dict[str, Tensor | None]:
    """The tensors that may have a gradient, by name, also those of other axes."""
    own = {name: given[name] for name in DIFFERENTIABLE}
    return {**own, **dict(zip(axis_tensor_names(given["words"]), given["axis_tensors"], strict=True))}


def with_tensors(given: dict[str, Any], tensors: dict[str, Tensor]) -> dict[str, Any]:
    """The arguments with other tensors in place of the named ones."""
    names = axis_tensor_names(given["words"])
    others = [tensors.get(name, held) for name, held in zip(names, given["axis_tensors"], strict=True)]
    return {**given, **{name: tensors[name] for name in tensors.keys() & given.keys()}, "axis_tensors": others}


def on_axis(name: str, number: int) -> str:
    """The name of a tensor on the axis of that number; on the sequence, axis 0, it is unchanged."""
    return f"{name} of axis {number}" if number else name


def axis_tensor_names(words: Sequence[str]) -> list[str]:
    """The names of `axis_tensors`, in order; `words` as in the arguments."""
    names, width, words = [], 2 + len(OF_AN_AXIS), words[len(TABLES) :]
    for number in range(len(words) // width):
        there = words[number * width + 2 : (number + 1) * width]
        names += [on_axis(name, number + 1) for name, word in zip(OF_AN_AXIS, there, strict=True) if word]
    return names


def _flat_axes(axes: Sequence[Axis]) -> tuple[list[int], list[str], list[Tensor], list[Tensor]]:
    """The axes beside the sequence.

    For each axis the words are: the kind of each side's positions, whether there is an r, and the rule of each table
    beyond its rows; "" for anything absent. The numbers are those of the positions, then each table's first offset.
    """
    numbers, words, explicit, tensors = [], [], [], []
    for axis in axes:
        positions = axis.positions
        for place in (positions.query, positions.key):
            words.append(type(place).__name__)
            if isinstance(place, ExplicitPositions):
                explicit.append(place.positions)
            elif isinstance(place, ContiguousPositions):
                numbers.append(place.start)
            else:
                numbers += [place.start, place.first, place.prefix_tokens, place.off_grid, len(place.terms)]
                numbers += [number for term in place.terms for number in term]
        words.append("" if axis.relative_query is None else "r")
        tensors += [] if axis.relative_query is None else [axis.relative_query]
        for name in TABLES:
            table = getattr(axis, name)
            words.append("" if table is None else table.beyond)
            if table is not None:
                numbers.append(table.first)
                tensors.append(table.values)
    return numbers, words, explicit, tensors


def _axes_of(
    numbers: Sequence[int], words: Sequence[str], explicit: Sequence[Tensor], tensors: Sequence[Tensor], like: Positions
) -> Iterator[Axis]:
    """The axes from the lists of `_flat_axes`, for as many queries and keys as `like` has."""
    number, word, places, tensor = iter(numbers), iter(words), iter(explicit), iter(tensors)

    def place() -> Position:
        kind = next(word)
        if kind == "ExplicitPositions":
            return ExplicitPositions(next(places))
        if kind == "ContiguousPositions":
            return ContiguousPositions(next(number))
        start, first, prefix_tokens, off_grid, count = (next(number) for _ in range(5))
        terms = tuple((next(number), next(number), next(number)) for _ in range(count))
        return GridPositions(terms, start=start, first=first, prefix_tokens=prefix_tokens, off_grid=off_grid)

    for order in range(1, 1 + len(words) // (2 + len(OF_AN_AXIS))):
        query, key = place(), place()
        positions = Positions(query, key, like.query_length, like.key_length, like.device, axis=f"axis {order}")
        r = next(tensor) if next(word) else None
        tables = {}
        for name in TABLES:
            beyond = next(word)
            if beyond:
                tables[name] = OffsetTable(next(tensor), next(number), beyond)  # pyright: ignore[reportArgumentType]
        yield Axis(positions, r, **tables)
