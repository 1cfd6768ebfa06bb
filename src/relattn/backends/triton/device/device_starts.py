"""Starts given as tensors: a program reads them once, and computes with offsets less the origin."""

from __future__ import annotations

import triton
import triton.language as tl

from relattn.backends.triton.host.kernel_args import Band, KernelArgs, Mask


@triton.jit
def load_starts(x):
    """The `KernelArgs` with the numbers that stand in memory; without a tensor they are unchanged."""
    if x.starts is not None:
        x = KernelArgs(
            x.q, x.k, x.v, x.r,
            _from(x.relative_keys, x.starts, 0), _from(x.relative_queries, x.starts, 1),
            _from(x.relative_values, x.starts, 2), _from(x.bias, x.starts, 3),
            _limited(x.mask, x.starts), x.key_bias, x.key_shift, x.added,
            x.heads, x.group, x.queries, x.keys, x.offset, x.scale, x.softcap, x.dropout, x.starts,
            x.axes,
        )  # fmt: skip
    return x


@triton.jit
def _from(table, starts, NUMBER: tl.constexpr):
    if table is not None:
        first = tl.load(starts + NUMBER)
        table = Band(table.at, table.head, table.row, first, table.rows, table.beyond, table.zero)
    return table


@triton.jit
def _limited(mask, starts):
    lowest, highest = mask.lowest, mask.highest
    if lowest is not None:
        lowest = tl.load(starts + 4)
    if highest is not None:
        highest = tl.load(starts + 5)
    return Mask(
        lowest, highest, mask.keep, mask.keep_batch, mask.query_ids, mask.query_ids_batch,
        mask.key_ids, mask.key_ids_batch, mask.pairs, mask.explicit_limits,
        mask.visible_keys, mask.visible_queries,
    )  # fmt: skip
