"""The bundles of a call, from its tensors and numbers; and what follows from these before a kernel runs."""

from __future__ import annotations

import torch
from jaxtyping import Float, Int32
from torch import Tensor

from relattn.backends.triton.device.bands import padded
from relattn.backends.triton.device.dropout import dropout_of
from relattn.backends.triton.device.positions import side_of
from relattn.backends.triton.host.call import FARTHEST, Call, ExplicitAxis, Table
from relattn.backends.triton.host.kernel_args import (
    Band,
    ExplicitAxisArgs,
    ExplicitLimits,
    ExplicitTable,
    KernelArgs,
    Mask,
    Pairs,
    Rows,
)
from relattn.equation.problem import TABLES, Differentiable


def pack(call: Call, wanted: Differentiable[bool] | None = None) -> KernelArgs:
    """The call's tensors, last axes made contiguous where they are not. wanted: the gradients that are computed."""
    axes = tuple(_explicit_axis(call, axis, wanted) for axis in call.axes) if call.axes else ()
    bands = dict.fromkeys(TABLES)
    for name in TABLES:
        if (table := getattr(call, name)) is not None:
            bands[name] = _band(call, table)
    return KernelArgs(
        q=rows(call.query),
        k=rows(call.key),
        v=rows(call.value),
        r=None if call.relative_query is None else rows(call.relative_query),
        **bands,
        mask=_mask(call, axes),
        key_bias=None if call.key_bias is None else rows(call.key_bias),
        key_shift=None if call.key_shift is None else rows(call.key_shift),
        added=None if call.pair_mask is None or not call.adds_mask else pairs(call, call.pair_mask),
        heads=call.query.shape[1],
        group=call.query.shape[1] // call.key.shape[1],
        queries=call.query.shape[2],
        keys=call.key.shape[2],
        offset=0 if isinstance(call.offset, Tensor) else call.offset,
        scale=call.scale,
        softcap=call.softcap,
        dropout=dropout_of(call),
        starts=starts_of(call),
        axes=axes,
    )


def starts_of(call: Call) -> Int32[Tensor, "6"] | None:
    """The first offsets of the four tables, and the lowest and the highest visible offset, all less the origin.

    None where the origin is an int. Numbers far beyond the call are cut off: they mean the same, and 32 bits hold them.
    """
    if not isinstance(call.offset, Tensor):
        return None
    tables = (getattr(call, name) for name in TABLES)
    starts = [*(None if table is None else table.first for table in tables), call.lowest, call.highest]
    numbers = [0 if number is None else number for number in starts]
    starts = torch.stack([n if isinstance(n, Tensor) else torch.full_like(call.offset, n) for n in numbers])
    return (starts - call.offset).clamp(-FARTHEST, FARTHEST).to(torch.int32)


def rows(tensor: Tensor) -> Rows:
    """A tensor [B, H, L, width], or [B, H, L]."""
    if tensor.dim() == 4 and tensor.stride(3) != 1:
        tensor = tensor.contiguous()
    return Rows(tensor, *tensor.stride()[:3])


def pairs(call: Call, tensor: Tensor) -> Pairs:
    """A tensor that broadcasts to the call's pairs."""
    return Pairs(tensor, *tensor.expand(*call.query.shape[:3], call.key.shape[2]).stride())


def widths_of(call: Call) -> dict[str, int]:
    """The widths of queries and keys, of values, and of relative queries."""
    relative = call.query if call.relative_query is None else call.relative_query
    return {"D": call.query.shape[3], "DV": call.value.shape[3], "DR": relative.shape[3]}


def every_width_of(call: Call) -> list[int]:
    """Of the rows that a kernel has on chip, those of the axes' own r among them."""
    of_axes = [axis.relative_query.shape[3] for axis in call.axes if axis.relative_query is not None]
    return [*widths_of(call).values(), *of_axes]


def beyond(call: Call, table: Table) -> bool:
    """Whether a visible offset may lie outside of the table."""
    if isinstance(table.first, Tensor):  # it was made over the call's offsets
        return False
    if isinstance(call.offset, Tensor):
        return True
    lowest, highest = call.visible_offsets
    return lowest < table.first or highest >= table.first + table.values.shape[1]


def _band(call: Call, table: Table) -> Band:
    outside = 1 if beyond(call, table) else None
    first = 0 if isinstance(table.first, Tensor) or isinstance(call.offset, Tensor) else table.first
    return Band(*_table_at(table.values), first, table.values.shape[1], outside, 1 if outside and table.zero else None)


def _explicit_table(table: Table | None) -> ExplicitTable | None:
    if table is None:
        return None
    assert isinstance(table.first, int)
    return ExplicitTable(*_table_at(table.values), table.first, table.values.shape[1], 1 if table.zero else None)


def _table_at(values: Float[Tensor, "H R *W"]) -> tuple[Tensor, int, int]:
    """The address of a table, and the steps from head to head and from row to row. A row, or a bias, is contiguous."""
    if values.stride(-1) != 1:
        values = values.contiguous()
    return values, 0 if values.shape[0] == 1 else values.stride(0), values.stride(1) if values.dim() == 3 else 1


def wanted_tables(owner: Call | ExplicitAxis, wanted: Differentiable[bool] | None) -> dict[str, Table]:
    """The tables of the call's sequence, or of an axis, whose gradients are wanted, by the names of its fields."""
    if wanted is None:
        return {}
    asked = wanted.axes[owner.number if isinstance(owner, ExplicitAxis) else 0].tables
    tables = {name: getattr(owner, name) for name, one in zip(TABLES, asked, strict=True) if one}
    return {name: table for name, table in tables.items() if table is not None}


def _explicit_axis(call: Call, axis: ExplicitAxis, wanted: Differentiable[bool] | None) -> ExplicitAxisArgs:
    width = (call.query if axis.relative_query is None else axis.relative_query).shape[3]
    return ExplicitAxisArgs(
        side_of(axis.queries, call.query.shape[2], call.query.device),
        side_of(axis.keys, call.key.shape[2], call.query.device),
        None if axis.relative_query is None else rows(axis.relative_query),
        _explicit_table(axis.relative_keys),
        _explicit_table(axis.relative_queries),
        _explicit_table(axis.relative_values),
        _explicit_table(axis.bias),
        relative_width=width,
        log_width=(None,) * (int(padded(width)).bit_length() - 1),
        summed=(None,) * sum(1 << TABLES.index(name) for name in wanted_tables(axis, wanted)),
    )


def _explicit_limits(call: Call, axes: tuple[ExplicitAxisArgs, ...]) -> ExplicitLimits | None:
    axis = call.explicit_sequence
    if axis is None or (axis.lowest is None and axis.highest is None):
        return None
    return ExplicitLimits(axes[0].queries, axes[0].keys, axis.lowest, axis.highest)


def _mask(call: Call, axes: tuple[ExplicitAxisArgs, ...]) -> Mask:
    lowest, highest = _limits(call)
    keep = None if call.key_mask is None else call.key_mask.contiguous().view(torch.uint8)
    query_ids, key_ids = call.query_segments, call.key_segments
    query_ids = None if query_ids is None else query_ids.contiguous()
    key_ids = None if key_ids is None else key_ids.contiguous()
    boolean = None if call.pair_mask is None or call.adds_mask else call.pair_mask.view(torch.uint8)
    return Mask(
        lowest=lowest,
        highest=highest,
        keep=keep,
        keep_batch=None if keep is None else keep.stride(0),
        query_ids=query_ids,
        query_ids_batch=None if query_ids is None else query_ids.stride(0),
        key_ids=key_ids,
        key_ids_batch=None if key_ids is None else key_ids.stride(0),
        pairs=None if boolean is None else pairs(call, boolean),
        explicit_limits=_explicit_limits(call, axes) if axes else None,
        visible_keys=None if call.visible is None else _ranges(call, call.visible.keys),
        visible_queries=None if call.visible is None else _ranges(call, call.visible.queries),
    )


def _ranges(call: Call, ranges: Int32[Tensor, "#B #Hq L 2"]) -> Rows:
    return rows(ranges.expand(*call.query.shape[:2], -1, -1))


def _limits(call: Call) -> tuple[int | None, int | None]:
    """The limits of visible offsets, None where no pair is beyond one; 0 where it stands in memory."""
    if isinstance(call.offset, Tensor):
        return None if call.lowest is None else 0, None if call.highest is None else 0
    lowest, highest = call.visible_offsets
    limits = call.lowest if call.lowest == lowest else None, call.highest if call.highest == highest else None
    # A limit that leaves nothing visible may lie far away; just beyond the pairs' offsets it means the same.
    lowest = None if limits[0] is None else min(limits[0], call.offset + call.key.shape[2])
    highest = None if limits[1] is None else max(limits[1], call.offset - call.query.shape[2])
    return lowest, highest
