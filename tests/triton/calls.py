"""Calls of tensors without memory, for what needs their shapes alone, and the GPUs that they are compiled for."""

from collections.abc import Collection
from dataclasses import replace
from types import ModuleType
from typing import Any

import torch

from relattn.backends.problem_operator import Answers, Forward
from relattn.backends.triton.host.call import Call, ExplicitAxis, Table
from relattn.equation.mask import Mask
from relattn.equation.problem import TABLES, Differentiable, Part
from relattn.equation.visible_ranges import VisibleRanges
from relattn.positions.contiguous import ContiguousPositions
from relattn.positions.explicit import ExplicitPositions
from relattn.positions.positions import Positions

SHARED_MEMORY = {80: 163, 86: 99, 89: 99, 90: 227, 100: 227, 120: 99}
"""KiB that a program may have, by compute capability: CUDA's programming guide, "Technical Specifications"."""
BATCH, HEADS, WIDTH = 4, 16, 64
ABSENT = (
    "relative_query", "relative_keys", "relative_queries", "relative_values", "bias",
    "lowest", "key_mask", "query_segments", "key_segments", "pair_mask", "seed", "key_bias", "key_shift", "softcap",
)  # fmt: skip


def meta_call(
    tables: tuple[str, ...] = (), rows: int = 1, *, length: int = 4096, width: int = WIDTH,
    dtype: torch.dtype = torch.bfloat16, **changes: Any,
) -> Call:  # fmt: skip
    """A causal call of as many queries as keys; every table has a row for each of `rows` offsets around 0, per head."""
    query, key, value = (torch.empty(BATCH, HEADS, length, width, dtype=dtype, device="meta") for _ in range(3))
    shape = (HEADS, rows, width)
    found = {name: Table(query.new_empty(shape[: 2 if name == "bias" else 3]), -(rows // 2), False) for name in tables}
    given = (
        dict.fromkeys(ABSENT)
        | found
        | {
            "offset": 0,
            "highest": 0,
            "scale": 0.125,
            "part": Part(0, 0, 0, HEADS),
            "dropout_p": 0.0,
            "in_float32": False,
            "precision": "ieee",
        }
        | changes
    )
    return Call(**{"query": query, "key": key, "value": value} | given)


def meta_axis(
    number: int, rows: int, *, length: int = 4096, width: int = WIDTH, dtype: torch.dtype = torch.bfloat16,
    own: int | None = None, **limits: int | None,
) -> ExplicitAxis:  # fmt: skip
    """An explicit axis with every table; each batch element has its own queries' positions. own: the width of its r,
    None where r is q.
    """
    call = meta_call(TABLES, rows, length=length, width=width, dtype=dtype)
    query, key = ExplicitPositions(numbers(BATCH, length)), ExplicitPositions(numbers(length))
    tables = {name: getattr(call, name) for name in TABLES}
    if own is None:
        return ExplicitAxis(number, query, key, **tables, **limits)
    relative = call.query.new_empty(*call.query.shape[:3], own)
    wider = call.query.new_empty(*tables["relative_keys"].values.shape[:2], own)
    tables["relative_keys"] = tables["relative_keys"]._replace(values=wider)
    return ExplicitAxis(number, query, key, relative, **tables, **limits)


def launching() -> tuple[ModuleType, ...]:
    """The modules that launch kernels along tiles, each by a `launch` of its own."""
    from relattn.backends.triton.kernels import backward, forward, keys, ordered_launch

    return forward, backward, keys, ordered_launch


def on_axis(name: str, number: int) -> str:
    """A name for what the axis of that number has; unchanged on the sequence."""
    return f"{name} of axis {number}" if number else name


def gradient_names(axes: int) -> list[str]:
    """Of the leaves of a problem with so many axes."""
    of_axes = (on_axis(name, n) for n in range(axes) for name in ("relative_query", *TABLES))
    return [*Differentiable._fields[:5], *of_axes]


def every_gradient_of(call: Call) -> Differentiable[bool]:
    """All that the backward pass may be asked for."""
    return some_gradients_of(call, gradient_names(num_axes(call)))


def some_gradients_of(call: Call, names: Collection[str]) -> Differentiable[bool]:
    """Those with these names."""
    return Differentiable.of([name in names for name in gradient_names(num_axes(call))])


def num_axes(call: Call) -> int:
    """Of the call's problem, up to its last explicit axis."""
    return 1 + max((axis.number for axis in call.axes), default=0)


def answered(found: Forward, by_output: torch.Tensor, by_lse: torch.Tensor) -> Answers:
    """What the backward pass is given: answers, and the gradients by output and lse."""
    return Answers(found.output, found.maximum, found.total, by_output, by_lse)


def numbers(*shape: int) -> torch.Tensor:
    """Integers."""
    return torch.empty(shape, dtype=torch.int64, device="meta")


def with_ranges(call: Call) -> Call:
    """The same, whose walks begin and end where its masks let something be seen, as in a large call."""
    side, device = ContiguousPositions(0), call.query.device
    positions = Positions(side, side, call.query.shape[2], call.key.shape[2], device, call.lowest, call.highest)
    segments = None
    if call.query_segments is not None and call.key_segments is not None:
        segments = call.query_segments, call.key_segments
    has_bias = call.bias is not None or call.key_bias is not None
    mask = Mask(positions, call.key_mask, segments, call.pair_mask)
    return replace(call, visible=VisibleRanges.of(mask, has_bias=has_bias))
