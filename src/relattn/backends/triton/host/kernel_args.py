"""A call as the kernels take it: pointers, strides and limits, in bundles; a None compiles to nothing."""

from __future__ import annotations

from typing import NamedTuple

from torch import Tensor

from relattn.backends.triton.device.dropout import Dropout
from relattn.backends.triton.device.positions import Side


class Rows(NamedTuple):
    """A tensor [B, H, L, width] whose last axis is contiguous: its address, and the steps along the other axes."""

    at: Tensor
    batch: int
    head: int
    row: int


class Band(NamedTuple):
    """A table: its address, the steps from head to head and from row to row, and the offsets that it covers.

    row: 1 for a bias. beyond: 1 where a visible offset may lie outside of the table, else None. zero: 1 where nothing
    is added there; None where the edge rows hold. A None and a 1 are constants for the compiler.
    """

    at: Tensor
    head: int
    row: int
    first: int
    rows: int
    beyond: int | None
    zero: int | None


class ExplicitTable(NamedTuple):
    """A table of an axis, as in `Band`. No offset is known there, so any may lie outside of the table."""

    at: Tensor
    head: int
    row: int
    first: int
    rows: int
    zero: int | None


class Pairs(NamedTuple):
    """A tensor that broadcasts to [B, Hq, Lq, Lk]: its address, and its steps, 0 on an axis where it broadcasts."""

    at: Tensor
    batch: int | None
    head: int | None
    query: int | None
    key: int | None


class ExplicitLimits(NamedTuple):
    """The positions on an axis, and the limits of visible offsets."""

    queries: Side
    keys: Side
    lowest: int | None
    highest: int | None


class ExplicitAxisArgs(NamedTuple):
    """An `ExplicitAxis`, with the width of its r. In a bundle a length is a constant for the compiler, a number is not.
    So log_width has as many members as the padded width has doublings of 1. And summed has as many as the sum of 2^n
    over the tables whose gradients are computed, by their number n in TABLES.

    r: None where it is q.
    """

    queries: Side
    keys: Side
    r: Rows | None
    relative_keys: ExplicitTable | None
    relative_queries: ExplicitTable | None
    relative_values: ExplicitTable | None
    bias: ExplicitTable | None
    relative_width: int
    log_width: tuple[None, ...]
    summed: tuple[None, ...]


class Mask(NamedTuple):
    """The masks and limits that decide which pairs attend, with the steps along the axes of each tensor; see
    `masks.py`. explicit_limits: those of a sequence of explicit positions. visible_keys, visible_queries: those of
    `VisibleRanges`, each a row of two numbers.
    """

    lowest: int | None
    highest: int | None
    keep: Tensor | None
    keep_batch: int | None
    query_ids: Tensor | None
    query_ids_batch: int | None
    key_ids: Tensor | None
    key_ids_batch: int | None
    pairs: Pairs | None
    explicit_limits: ExplicitLimits | None
    visible_keys: Rows | None
    visible_queries: Rows | None


class KernelArgs(NamedTuple):
    """Everything that the score of a pair depends on.

    r: None where the relative query is the query itself. key_bias, key_shift: numbers per key and per query; each
    row is a head. added: a float mask. heads Hq, group Hq / Hk, queries Lq, keys Lk; offset: d of query 0 and key 0.
    starts: where an origin is a tensor, offset is 0, and the tables'
    first offsets and the limits stand in memory (`device_starts.py`). axes: the explicit ones (`explicit.py`).
    """

    q: Rows
    k: Rows
    v: Rows
    r: Rows | None
    relative_keys: Band | None
    relative_queries: Band | None
    relative_values: Band | None
    bias: Band | None
    mask: Mask
    key_bias: Rows | None
    key_shift: Rows | None
    added: Pairs | None
    heads: int
    group: int
    queries: int
    keys: int
    offset: int
    scale: float
    softcap: float | None
    dropout: Dropout | None
    starts: Tensor | None
    axes: tuple[ExplicitAxisArgs, ...]
