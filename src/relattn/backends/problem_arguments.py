"""A problem as the arguments of an operator, and back: lists of its tensors and numbers, and a word for each part.

The words follow the problem's parts from left to right, a whole before its parts: "tensor", "int" and "float" stand for
the next one of their list, "tuple/3" for a tuple of the three parts that follow. So one schema serves any number of
axes, and a graph keeps the numbers open.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from relattn.equation.mask import Mask
from relattn.equation.problem import Axis, Part, Problem
from relattn.equation.tables import OffsetTable
from relattn.equation.visible_blocks import Blocks
from relattn.positions.contiguous import ContiguousPositions, as_tensor
from relattn.positions.explicit import ExplicitPositions
from relattn.positions.grid import GridPositions
from relattn.positions.positions import SEQUENCE, Positions

SCHEMA = "Tensor[] tensors, SymInt[] numbers, float[] floats, str words"
CONSTANTS: dict[str, Any] = {
    "None": None, "True": True, "False": False, "clamp": "clamp", "zero": "zero", "error": "error",
    "float64": torch.float64, "float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16,
}  # fmt: skip
WORDS = {constant: word for word, constant in CONSTANTS.items()}
FIELDS = {
    ContiguousPositions: ("start",),
    ExplicitPositions: ("positions",),
    GridPositions: ("terms", "start", "first", "prefix_tokens", "off_grid"),
}
PLACES = {place.__name__: place for place in FIELDS}


class Arguments(NamedTuple):
    """The arguments of SCHEMA. The first tensors are the problem's leaves; the first word is the output's dtype."""

    tensors: list[Tensor]
    numbers: list[int]
    floats: list[float]
    words: str


def flat(problem: Problem, seed: Tensor | None) -> Arguments:
    """The problem as an operator's arguments. Starts and the seed, tensors without axes, go to the query's device."""
    mask, device, axes = problem.mask, problem.query.device, []
    for axis in problem.axes:
        p, rules = axis.positions, []
        for table in axis[2:]:
            if table is not None and isinstance(p.origin, Tensor) and table.beyond == "error":
                rules.append((as_tensor(table.first, device), "error"))
            else:
                rules.append(None if table is None else (table.first, table.beyond))
        axes.append((p.query, p.key, p.lowest, p.highest, tuple(rules)))
    left: list[Any] = [
        problem.asks_for_gradient(), tuple(problem.dropout_origin()), problem.dropout_p, problem.softcap, problem.scale,
        seed, mask.blocks, mask.segments, mask.key_mask, tuple(axes), tuple(problem.leaves()), problem.output_dtype,
    ]  # fmt: skip
    tensors, numbers, floats, words = [], [], [], []
    while left:
        part = left.pop()
        if isinstance(part, Tensor):
            words.append("tensor")
            tensors.append(part if part.dim() else part.to(device))
        elif isinstance(part, tuple):
            words.append(f"tuple/{len(part)}")
            left += part[::-1]
        elif type(part) in FIELDS:
            fields = FIELDS[type(part)]
            words.append(f"{type(part).__name__}/{len(fields)}")
            for name in fields[::-1]:
                left.append(getattr(part, name))
        elif isinstance(part, (float, torch.SymFloat)):
            words.append("float")
            floats.append(part)
        elif isinstance(part, (int, torch.SymInt)) and not isinstance(part, bool):
            words.append("int")
            numbers.append(part)
        else:
            words.append(WORDS[part])
    return Arguments(tensors, numbers, floats, " ".join(words))


def problem_of(
    tensors: Sequence[Tensor], numbers: Sequence[int], floats: Sequence[float], words: str, *, read: bool = True
) -> tuple[Problem, Any]:
    """The problem and the seed from the arguments of `flat`. read: whether tensors without axes become ints."""
    left = {"tensor": list(tensors), "int": list(numbers), "float": list(floats)}
    parts: list[Any] = []
    for word in reversed(words.split(" ")):  # the parts of a whole before it, the last part first
        if word in left:
            part = left[word].pop()
            parts.append(int(part) if read and word == "tensor" and part.dim() == 0 else part)
        elif word in CONSTANTS:
            parts.append(CONSTANTS[word])
        else:
            kind, count = word.split("/")
            of_whole = parts[: -int(count) - 1 : -1]
            del parts[len(parts) - int(count) :]
            if kind in PLACES:
                of_whole = PLACES[kind](**dict(zip(FIELDS[PLACES[kind]], of_whole, strict=True)))
            parts.append(tuple(of_whole) if kind == "tuple" else of_whole)
    dtype, leaves, places, *masks, seed, scale, softcap, dropout_p, part, for_backward = reversed(parts)
    key_mask, segments, blocks = masks
    query, key, value, pairs, key_bias, *of_axes = leaves
    axes = []
    for n, (query_place, key_place, lowest, highest, rules) in enumerate(places):
        relative_query, *values = of_axes[5 * n : 5 * n + 5]
        positions = Positions(
            query_place, key_place, query.shape[2], key.shape[2], query.device, lowest, highest,
            axis=f"axis {n}" if n else SEQUENCE,
        )  # fmt: skip
        tables = []
        for rows, rule in zip(values, rules, strict=True):
            tables.append(None if rule is None else OffsetTable(rows, *rule))
        axes.append(Axis(positions, relative_query, *tables))
    mask = Mask(axes[0].positions, key_mask, segments, pairs, None if blocks is None else Blocks(*blocks))
    problem = Problem(
        query, key, value, tuple(axes), mask, scale, dtype, dropout_p,
        return_lse=True, softcap=softcap, key_bias=key_bias, part=Part(*part), for_backward=for_backward,
    )  # fmt: skip
    return problem, seed
