"""Which sizes of tiles suit a call: one or two, the first of which is taken where nothing is timed.

A program of `forward_kernel` or `queries_kernel` owns one tile of queries, or several.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch

from relattn.backends.triton.device.bands import INTERPRETED
from relattn.backends.triton.host.call import Call, ExplicitAxis, Table
from relattn.backends.triton.host.pack import every_width_of, widths_of
from relattn.equation.problem import Differentiable


class TileConfig(NamedTuple):
    """How many keys, queries or offsets a tile has on each side; warps; stages; and how many tiles of queries a program
    owns that walks over keys. Of several each has a warp of its own.
    """

    tile: int
    warps: int
    stages: int
    groups: int = 1


SMALLEST = TileConfig(16, 4, 1)
"""Where no candidate fits."""
AMPERE = 80
"""The compute capability of A100 and A30, where reading both factors of a product through L1 takes longer than the
product. There programs with several tiles of queries are timed. GeForce GPUs have slower tensor cores and less shared
memory. Hopper's tensor cores read shared memory themselves, but not for products with three axes.
"""
HOPPER = 90
"""The compute capability of H100 and H200. Under four warps and more their tensor cores read factors of 64 rows from
shared memory, by a descriptor: the place, and how long the rows are, 128 bytes at most. ptxas 12.8, which Triton 3.7
takes for these chips, was seen to compute a descriptor from a register that nothing had written. That was where two
factors with rows of different lengths had stood at one place.
"""
ALONG_KEYS = ("forward_kernel", "queries_kernel")
"""The kernels whose programs own tiles of queries, and walk over the keys."""


def constants(kernel: Any, config: TileConfig) -> dict[str, int]:
    """What the kernel is compiled for, of its sizes."""
    of_groups = {"GROUPS": config.groups} if kernel.__name__ in ALONG_KEYS else {}
    return {"TILE": config.tile, **of_groups}


def tile_configs(kernel: str, call: Call, arch: int) -> list[TileConfig]:
    """Two sizes, or one, for a GPU of compute capability arch / 10. The first is taken where nothing is timed."""
    first, *second = _on_every_chip(kernel, call)
    # A training step is to compile four kernels: where a pass has more than one, each has one size.
    if has_no_room_for_every_gradient(call) or (call.adds_mask and kernel != "forward_kernel"):
        second = []
    elif second and arch == AMPERE and kernel in ALONG_KEYS and _has_room_for_groups(call):
        warps = 8 if kernel == "forward_kernel" else 4
        second = [TileConfig(32, warps, 2, groups=warps)]
    if arch == HOPPER:
        return _on_hopper(kernel, call, [first, *second])
    return [first, *second]


def has_no_room_for_every_gradient(call: Call) -> bool:
    """Whether a program that owns queries would spill what it sums: each gradient has a kernel of its own there."""
    if max(widths_of(call).values()) > 128:
        return _vectors(call) > 0
    is_half = call.query.dtype != torch.float32
    return is_half and _doublings(call) > 0 and _vectors(call) > 2 and not call.axes


def has_room_for_all_tables(call: Call) -> bool:
    """Whether a program that owns offsets of the sequence may sum the gradients of all tables there."""
    return _doublings(call) == 0 or not (call.axes or call.adds_mask)


def is_always_deterministic(call: Call, arch: int, wanted: Differentiable[bool]) -> bool:
    """Whether one program sums each number on that GPU, asked for or not: where a program has no room for every
    gradient, and where that is faster. arch: 0 for what holds on every chip.
    """
    if has_no_room_for_every_gradient(call):
        return True
    sums_many_rows = wanted.axes[0].tables.bias and call.bias is not None and not _has_few_rows(call, call.bias)
    return arch == HOPPER and is_faster_deterministic_on_hopper(call) and (_doublings(call) > 0 or not sums_many_rows)


def is_faster_deterministic_on_hopper(call: Call) -> bool:
    """Whether the deterministic kernels are faster there than one that adds across programs, as far as that was
    timed, with 64 and 128 features: where each query head has its keys, limits alone hide pairs, and there is no table,
    a bias or relative keys. The kernel of the tables walks over all pairs of each row: with 64 features, few rows. Of a
    bias rows count only where its gradient is wanted, and were timed for T5 alone.
    """
    others = (call.softcap, call.key_bias, call.key_mask, call.query_segments, call.pair_mask)
    has_others = any(each is not None for each in others) or call.dropout_p > 0.0 or call.axes
    shares_keys = call.query.shape[1] != call.key.shape[1]
    has_room = call.query.dtype != torch.float32 and _doublings(call) <= 1 and _has_whole_rows(call)
    if has_others or shares_keys or not has_room:
        return False
    if call.relative_keys is None:
        return _vectors(call) == 0
    has_one_table = _vectors(call) == 1 and call.bias is None and call.relative_query is None
    is_half = call.relative_keys.values.dtype == call.query.dtype
    return has_one_table and is_half and (_doublings(call) == 1 or has_few_rows(call))


def has_few_rows(call: Call) -> bool:
    """Whether it has relative keys for few offsets."""
    return call.relative_keys is not None and _has_few_rows(call, call.relative_keys)


def _has_few_rows(call: Call, table: Table) -> bool:
    """At most an eighth of the offsets that a pair may have: with more, both ways took as long."""
    lowest, highest = call.visible_offsets
    return 8 * table.values.shape[1] <= highest - lowest + 1


def _has_room_for_groups(call: Call) -> bool:
    """Whether programs that own several tiles of queries take all terms of the call, and need less of L1 for it."""
    vectors = [table.values for table in (call.relative_keys, call.relative_values) if table is not None]
    others = call.relative_queries is not None or call.axes or call.dropout_p > 0.0
    fits = all(32 < width <= 64 for width in widths_of(call).values())
    is_half = all(each.dtype != torch.float32 for each in (call.query, *vectors))
    return bool(vectors or call.bias is not None) and is_half and fits and not others


def _on_hopper(kernel: str, call: Call, configs: list[TileConfig]) -> list[TileConfig]:
    """The second chosen from measure/results/gpu/sizes.md, of an H100, for the kinds that were timed there."""
    vectors, doublings = _vectors(call), _doublings(call)
    if call.query.dtype == torch.float32:
        return configs
    if not _has_whole_rows(call):  # fewer warps: they read no descriptors
        tile = 32 if vectors < 2 and not call.axes else 16
        narrow = (TileConfig(tile, 2, 2) if size.tile >= 32 and size.warps >= 4 else size for size in configs)
        return list(dict.fromkeys(narrow))
    if is_faster_deterministic_on_hopper(call):  # by more kernels, each in one size
        return [_deterministic_on_hopper(kernel, vectors, doublings, call.bias is not None)]
    if len(configs) < 2 or kernel not in ALONG_KEYS or call.dropout_p > 0.0 or doublings > 1:
        return configs
    if (vectors in (1, 2) and doublings) or (vectors == 2 and kernel == "queries_kernel"):
        return [configs[0], TileConfig(64, 4, 1)]
    return configs


def _deterministic_on_hopper(kernel: str, vectors: int, doublings: int, has_bias: bool) -> TileConfig:
    """A fast one of those that were timed, for all calls without a table or with one."""
    if kernel == "tables_kernel":
        return TileConfig(64, 4 if vectors else 8, 2)
    if kernel == "forward_kernel" and not (doublings and vectors):
        return TileConfig(64, 4, 2 if has_bias else 3)
    return TileConfig(64, 4, 1 if vectors and (doublings or kernel == "keys_kernel") else 2)


def _has_whole_rows(call: Call) -> bool:
    """Whether every factor of a product in half precision has rows of 128 bytes and more."""
    return min(every_width_of(call)) > 32


def _on_every_chip(kernel: str, call: Call) -> list[TileConfig]:
    """Chosen from the table in measure/results/triton, of registers, spills and shared memory on each generation.

    The first fits on every chip; it was chosen to repeat no product, and then to spill little.
    """
    if INTERPRETED:
        return [SMALLEST]
    is_backward, is_float32 = kernel != "forward_kernel", call.query.dtype == torch.float32
    vectors = _vectors(call)
    tables = vectors + (call.bias is not None)
    beside = tables + (call.dropout_p > 0.0)  # which takes registers, too
    doublings = _doublings(call)
    if call.axes:  # of float32 a thread holds whole vectors of its pairs: beside wide ones, it has one pair
        return [TileConfig(16, 8 if doublings > 1 else 4, 1) if is_float32 else _for_explicit_positions(kernel, call)]
    if call.precision == "tf32x3":
        # Two warps would compute some products twice, and one would spill where a program owns the keys.
        return [TileConfig(16, 2 if kernel == "keys_kernel" else 1, 2), TileConfig(32, 4, 2)]
    if is_float32 and (doublings or vectors > 1):
        # Without tensor cores a thread holds the whole vectors of its pairs. Under eight warps it has one pair of 256.
        return [TileConfig(16, 8, 1), TileConfig(16, 8, 2)]
    if doublings == 2 or is_float32:
        is_full = beside > 0 or kernel == "keys_kernel"
        first = TileConfig(16, 4 if is_float32 else 2, 2) if is_full else TileConfig(32, 4, 2)
    elif beside + doublings <= (0 if is_backward else 1):
        return [TileConfig(64, 4, 2), TileConfig(64, 4, 3) if tables else TileConfig(128, 8, 2)]
    elif (kernel == "mask_kernel" and vectors > 1) or (kernel == "several_kernel" and tables > 1):
        first = TileConfig(16, 1, 2)  # two warps would compute some products twice
    elif _holds_much(kernel, call):
        first = TileConfig(16, 2, 2)
    else:
        # Two warps where every product is as wide as a tile: four would compute some of it twice.
        first = TileConfig(32, 2 if kernel in ("tables_kernel", "several_kernel") and not vectors else 4, 2)
    return [first, TileConfig(2 * first.tile, 4, 2)]


def tiles_of_a_program(kernel: Any, call: Call, extent: int, arch: int) -> int:
    """How many tiles of keys, or blocks of offsets, a program owns, of `extent` in all: 2 need fewer products.

    1 where there is no more than a tile, and where the sums of two leave no registers. On an H100 relative keys leave
    none in tiles of 64.
    """
    if arch == HOPPER and _vectors(call) and is_faster_deterministic_on_hopper(call):
        return 1
    others = call.dropout_p > 0.0 or call.softcap is not None
    beside = 2 * _doublings(call) + max(_vectors(call) - 1, 0) + others
    has_room = beside <= 1 and call.query.dtype != torch.float32 and not call.axes
    return 2 if has_room and extent > _on_every_chip(kernel.__name__, call)[0].tile else 1


def _holds_much(kernel: str, call: Call) -> bool:
    """Whether tiles of 32 in half precision would spill. Programs that own queries sum most."""
    of_queries, vectors, drops = kernel == "queries_kernel", _vectors(call), call.dropout_p > 0.0
    if _doublings(call):
        return vectors + (call.bias is not None) + drops > (1 if of_queries else 2)
    return of_queries and vectors + drops > 2


def _vectors(call: Call | ExplicitAxis) -> int:
    """The number of tables of vectors."""
    return sum(table is not None for table in (call.relative_keys, call.relative_queries, call.relative_values))


def _doublings(call: Call) -> int:
    """Of a width of 64, up to that of the call."""
    return max((max(every_width_of(call)) - 1).bit_length() - 6, 0)


def _for_explicit_positions(kernel: str, call: Call) -> TileConfig:
    """With explicit positions a tile has a block of rows and the sums by row beside the rest: larger tiles spill. More
    warps would compute products twice.
    """
    adds_much = kernel == "queries_kernel" and sum(map(_vectors, (call, *call.axes))) > 2
    owns_rows = kernel in ("rows_kernel", "several_kernel", "tables_kernel")
    return TileConfig(16, 2, 1) if _doublings(call) or adds_much or owns_rows else TileConfig(32, 4, 2)
