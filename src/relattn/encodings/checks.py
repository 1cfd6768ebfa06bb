"""Checks that encodings share: their numbers must fit the query, and their parameters must fit into memory."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

import torch
from torch import Tensor, nn

from relattn.checks.dtensors import heads_elsewhere
from relattn.checks.tensors import heads_after_length, shape
from relattn.checks.values import came, check_size
from relattn.errors import ShapeError

T = TypeVar("T")


def check_heads(
    encoding: str, num_heads: int, width: int | None, query: Tensor, parameter: Tensor | None = None
) -> None:
    """The query has as many heads as an encoding with numbers per head, and the encoding's width if it has one.

    Raises ShapeError: for another query; ValueError: for a query on another device than `parameter`.
    """
    if query.shape[1] != num_heads:
        raise ShapeError(
            f"{encoding} num_heads: got {num_heads}; expected {query.shape[1]}, the heads of query {shape(query)}; "
            f"make it with num_heads={query.shape[1]}{heads_elsewhere(num_heads, query.shape[1])}"
            f"{heads_after_length(num_heads == query.shape[2])}"
        )
    if width is not None and query.shape[3] != width:
        raise ShapeError(
            f"{encoding} head_dim: got {width}; expected {query.shape[3]}, the width of query {shape(query)}; "
            f"make it with head_dim={query.shape[3]}"
        )
    if parameter is not None and parameter.device != query.device:
        raise ValueError(
            f"{encoding}: got device {parameter.device}; expected {query.device}, the query's; move the encoding with "
            ".to()"
        )


def check_sizes(name: str, sizes: object) -> tuple[int, ...]:
    """The sizes of a grid, ints of at least 1. A single size is a grid with one axis."""
    given = tuple(sizes) if isinstance(sizes, (tuple, list)) else (sizes,)
    if not given:
        raise ValueError(f"{name}: got {sizes!r}; expected an int of at least 1 for each axis, such as (7, 7)")
    return tuple(check_size(name, size) for size in given)


def check_axes(name: str, axes: object, count: int | None = None) -> tuple[str, ...]:
    """A tuple of different names of axes; as many as `count` where that is given."""
    given = tuple(axes) if isinstance(axes, (tuple, list)) else ()
    good = all(isinstance(axis, str) and axis for axis in given) and len(set(given)) == len(given)
    if not given or not good or (count is not None and len(given) != count):
        many = "different names of axes" if count is None else f"{count} different names of axes, one for each size"
        raise ValueError(f"{name}: got {axes!r}; expected {many}, such as ('y', 'x')")
    return given


def empty_parameter(*shape: int, **sizes: int) -> nn.Parameter:
    """A parameter of this shape, whose numbers are not set yet. It is `allocated`, with these `sizes`."""
    return allocated(lambda: nn.Parameter(torch.empty(shape)), **sizes)


def allocated(make: Callable[[], T], **sizes: int) -> T:
    """make(), which allocates parameters whose size follows from the arguments `sizes`.

    Raises ValueError: where the parameters do not fit into memory; it names the largest argument.
    """
    try:
        return make()
    except (RuntimeError, TypeError, OverflowError, MemoryError) as error:
        torch.empty(1)  # if make failed for a reason other than the size, this fails for the same reason
        name = max(sizes, key=lambda one: sizes[one])
        others = ", ".join(f"{other}={came(size)}" for other, size in sizes.items() if other != name)
        beside = f" with {others}" if others else ""
        raise ValueError(
            f"{name}: got {came(sizes[name])}{beside}; expected a size whose parameters fit into memory; make it "
            "smaller"
        ) from error
