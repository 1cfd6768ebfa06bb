"""The checks of the terms and tables that an encoding lowered, and their wording: they must fit the call."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from relattn.checks.dtensors import heads_elsewhere, is_dtensor, refuse_spread
from relattn.checks.tensors import heads_after_length, shape
from relattn.equation.tables import OffsetTable
from relattn.equation.terms import ScoreTerms
from relattn.errors import ShapeError
from relattn.interception import ORDINARY
from relattn.positions.contiguous import as_tensor
from relattn.positions.positions import SEQUENCE, Positions


def more_rows(table: str, positions: Positions) -> tuple[str, str]:
    """The name, and what to do, for a visible offset without a row in `table`, if the encoding gives no better ones."""
    return table, "use beyond='clamp' or 'zero', or give more rows"


def check_terms(
    terms: ScoreTerms,
    query: Tensor,
    key: Tensor,
    value: Tensor | None,
    positions: Positions,
    out_of_rows: Callable[[str, Positions], tuple[str, str]] = more_rows,
) -> None:
    """The terms of an encoding (or of the caller) fit the call: shapes, heads, dtypes, devices, and the visible
    offsets.

    value: None where the values are not available; then the width of relative values is not checked.
    """
    for name, rewritten, original in (("query", terms.query, query), ("key", terms.key, key)):
        if rewritten is None:
            continue
        if rewritten.shape != original.shape:
            raise ShapeError(
                f"terms {name}: got shape {shape(rewritten)}; expected {shape(original)}, for a rewritten {name} keeps "
                "the shape"
            )
        check_kind(f"terms {name}", rewritten, query)
    relative_query = query
    if terms.relative_query is not None:
        relative_query = terms.relative_query
        if relative_query.dim() != 4 or relative_query.shape[:3] != query.shape[:3]:
            raise ShapeError(
                f"relative_query: got shape {shape(relative_query)} beside query {shape(query)}; expected "
                f"{list(query.shape[:3])} and any width"
            )
        check_kind("relative_query", relative_query, query)
    for name, table, like, meaning in (
        ("relative_keys", terms.relative_keys, relative_query, "the width of the relative query"),
        ("relative_queries", terms.relative_queries, key, "the width of the keys"),
        ("relative_values", terms.relative_values, value, "the width of the values"),
        ("bias", terms.bias, None, ""),
    ):
        if table is None:
            continue
        values = table.values
        heads, width = values.shape[0], None if like is None else like.shape[3]
        if (
            (heads != 1 and heads != query.shape[1])  # `in` does not compare open sizes of a graph
            or (width is not None and values.shape[2] != width)
            or type(values) not in ORDINARY
            or values.dtype != query.dtype
            or values.device != query.device
        ):
            _check_table(name, table, width, meaning, query)
        if table.beyond == "error":
            _check_visible(name, table, positions, out_of_rows)


def check_term_axes(name: str, tensor: Tensor, batch: Sequence[int]) -> None:
    """A rewritten query or key, or a relative query, has the axes of the call before its heads."""
    if tuple(tensor.shape[:-3]) != tuple(batch) or tensor.dim() < 3:
        expected = ", ".join([*map(str, batch), "heads", "length", "width"])
        raise ShapeError(
            f"{name}: got shape {shape(tensor)}; expected [{expected}], the axes of the call; .expand() what all of "
            "the batch shares"
        )


def _check_table(name: str, table: OffsetTable, width: int | None, meaning: str, query: Tensor) -> None:
    values = table.values
    if values.shape[0] != 1 and values.shape[0] != query.shape[1]:
        raise ShapeError(
            f"{name}: got {values.shape[0]} heads ({shape(values)}); expected {query.shape[1]}, the query's; make the "
            f"encoding for {query.shape[1]} heads, or for one head shared by all"
            f"{heads_elsewhere(values.shape[0], query.shape[1])}{heads_after_length(values.shape[0] == query.shape[2])}"
        )
    if width is not None and values.shape[2] != width:
        of_values = name == "relative_values"
        way_out = "make values as wide as the keys" if of_values else f"make the encoding with head_dim={width}"
        raise ShapeError(
            f"{name}: got width {values.shape[2]} ({shape(values)}); expected {width}, {meaning}; {way_out}"
        )
    check_kind(name, values, query)


def check_kind(name: str, tensor: Tensor, query: Tensor) -> None:
    """An ordinary tensor of the query's dtype, or float32 beside a narrower one, on the query's device."""
    if is_dtensor(tensor):
        refuse_spread(name, tensor)
    if tensor.dtype != query.dtype and (tensor.dtype != torch.float32 or query.dtype == torch.float64):
        raise TypeError(
            f"{name}: got dtype {tensor.dtype}; expected {query.dtype}, the query's; convert the encoding with "
            f".to({query.dtype})"
        )
    if tensor.device != query.device:
        raise ValueError(
            f"{name}: got device {tensor.device}; expected {query.device}, the query's; move the encoding with .to()"
        )


def _check_visible(
    name: str, table: OffsetTable, positions: Positions, out_of_rows: Callable[[str, Positions], tuple[str, str]]
) -> None:
    """Every visible offset has a row; ValueError otherwise.

    Starts given as tensors are checked without reading them: the failure then is a RuntimeError, raised by the device.
    """
    if positions.query_length == 0 or positions.key_length == 0:
        return
    first, last = positions.visible
    lowest, highest = table.first, table.first + table.values.shape[1] - 1
    if not (isinstance(first, Tensor) or isinstance(last, Tensor) or isinstance(lowest, Tensor)):
        if first <= last and (first < lowest or last > highest):
            blamed, way_out = out_of_rows(name, positions)
            raise ValueError(
                f"{blamed}: got visible offsets {first}..{last}{_on(positions)} and rows for {lowest}..{highest}; "
                f"expected rows for every visible offset; {way_out}"
            )
        return
    first, last, lowest, highest = (as_tensor(n, positions.device) for n in (first, last, lowest, highest))
    inside = (first > last) | ((first >= lowest) & (last <= highest))
    blamed, way_out = out_of_rows(name, positions)
    torch._assert_async(  # pyright: ignore[reportPrivateImportUsage]
        inside, f"{blamed}: offsets beyond its rows are visible; {way_out}"
    )


def _on(positions: Positions) -> str:
    return "" if positions.axis == SEQUENCE else f" on the axis {positions.axis!r}"
