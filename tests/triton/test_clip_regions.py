"""The regions of a walk: each tile lies in the one to which the offsets of its pairs belong, counted pair by pair."""

import itertools
from typing import NamedTuple

import numpy as np
import pytest
import torch

triton = pytest.importorskip("triton")
tl = triton.language

from relattn.backends.triton.device.clip_regions import AFTER, BEFORE, WITHIN, keys_of, queries_of  # noqa: E402
from relattn.backends.triton.device.device_starts import load_starts  # noqa: E402
from relattn.backends.triton.device.masks import key_tiles, query_tiles  # noqa: E402
from relattn.backends.triton.host.call import FARTHEST, Call, Table  # noqa: E402
from relattn.backends.triton.host.pack import pack  # noqa: E402
from relattn.equation.problem import TABLES  # noqa: E402
from tests.triton import everywhere  # noqa: E402
from tests.triton.calls import meta_call  # noqa: E402

TILE = 16


class Walk(NamedTuple):
    """Over which side a program walks in tiles, and how many of the other it owns."""

    over_keys: bool
    owned: int


WALKS = {
    "over keys": Walk(True, TILE),
    "over keys, four tiles of queries": Walk(True, 4 * TILE),
    "over queries": Walk(False, TILE),
    "over queries, two tiles of keys": Walk(False, 2 * TILE),
}


@triton.jit
def bounds_kernel(x, into, OVER_KEYS: tl.constexpr, OWNED: tl.constexpr, TILE: tl.constexpr):
    """The ends of the three regions, and of the whole walk: over the keys for OWNED queries, or over the queries for
    OWNED keys.
    """
    x = load_starts(x)
    program = tl.program_id(0)
    head = program * 0
    for REGION in tl.static_range(3):
        if OVER_KEYS:
            begin, end = keys_of(x, head, head, program * OWNED, REGION, OWNED, TILE)
        else:
            begin, end = queries_of(x, head, head, program * OWNED, REGION, OWNED, TILE)
        tl.store(into + program * 8 + 2 * REGION, begin)
        tl.store(into + program * 8 + 2 * REGION + 1, end)
    if OVER_KEYS:
        begin, end = key_tiles(x, head, head, program * OWNED, OWNED, TILE)
    else:
        begin, end = query_tiles(x, head, head, program * OWNED, OWNED, TILE)
    tl.store(into + program * 8 + 6, begin)
    tl.store(into + program * 8 + 7, end)


def call_of(
    device: str, lengths: tuple[int, int], offset: int | torch.Tensor, first: int, rows: int, highest: int | None,
    ends: tuple[str, str],
) -> Call:  # fmt: skip
    """A call with a table at the first of these offsets and one, perhaps the same, at the last."""
    extents = {ends[0]: (first, rows)} if ends[0] == ends[1] else {ends[0]: (first, 1), ends[1]: (first + rows - 1, 1)}
    tables = {
        name: Table(torch.zeros((1, count) if name == "bias" else (1, count, 16), device=device), start, count > 1)
        for name, (start, count) in extents.items()
    }
    query, key, value = (torch.zeros(1, 1, lengths[at], 16, device=device) for at in (0, 1, 1))
    return meta_call(width=16, highest=highest, offset=offset, query=query, key=key, value=value, **tables)


def clipped(call: Call) -> tuple[int, int] | None:
    """The first offset of the clipped tables, and the one after the last."""
    bands = pack(call)._asdict()
    tables = [getattr(call, name) for name in TABLES if bands[name] is not None and bands[name].beyond is not None]
    if not tables:
        return None
    return min(table.first for table in tables), max(table.first + table.values.shape[1] for table in tables)


def check(found: list[int], program: int, walk: Walk, offset: int, first: int, last: int) -> None:
    """Every step of the walk is in one region, and that is the one of its pairs."""
    regions = {which: found[2 * which : 2 * which + 2] for which in (BEFORE.value, AFTER.value, WITHIN.value)}
    begin, end = found[6:]
    steps = [start for low, high in regions.values() for start in range(low, high, TILE)]
    assert sorted(steps) == list(range(begin, end, TILE))
    own, other = program * walk.owned + np.arange(walk.owned), np.arange(TILE)
    for which, (low, high) in regions.items():
        for start in range(low, high, TILE):
            i, j = (own, start + other) if walk.over_keys else (start + other, own)
            offsets = offset + j[None, :] - i[:, None]
            if (offsets < first).all():
                expected = BEFORE.value
            elif (offsets >= last).all():
                expected = AFTER.value
            else:
                expected = WITHIN.value
            assert which == expected, (program, start, offsets.min(), offsets.max(), first, last)


def check_all(call: Call, offset: int, walk: Walk, device: str) -> None:
    """Every program."""
    extent = clipped(call)
    assert extent is not None
    programs = -(-(call.query if walk.over_keys else call.key).shape[2] // walk.owned)
    into = torch.full((programs, 8), -1, dtype=torch.int32, device=device)
    bounds_kernel[(programs,)](pack(call), into, OVER_KEYS=walk.over_keys, OWNED=walk.owned, TILE=TILE)
    for program, found in enumerate(into.tolist()):
        check(found, program, walk, offset, *extent)


@everywhere
@pytest.mark.parametrize("as_tensor", [False, True], ids=["an int", "a tensor"])
@pytest.mark.parametrize("walk", WALKS)
def test_every_tile_lies_in_its_region(walk: str, as_tensor: bool, device: str) -> None:
    extents = [(first, 18) for first in range(-24, -8)] + [(-1, 1), (32, 16), (-300, 5), (300, 5)]
    ends = itertools.cycle(itertools.product(TABLES, TABLES))
    for lengths, offset, extent, highest in itertools.product(((70, 100), (5, 90)), (0, -37), extents, (None, 3)):
        at = torch.tensor(offset, device=device) if as_tensor else offset
        call = call_of(device, lengths, at, *extent, highest, next(ends))
        if clipped(call) is not None:
            check_all(call, offset, WALKS[walk], device)


@everywhere
@pytest.mark.parametrize("first", [FARTHEST - 1, 1 - FARTHEST])
@pytest.mark.parametrize("offset", [FARTHEST - 75, 75 - FARTHEST])
@pytest.mark.parametrize("lengths", [(70, 5), (5, 70)])
def test_offsets_near_the_ends_of_32_bits(lengths: tuple[int, int], offset: int, first: int, device: str) -> None:
    for walk in WALKS.values():
        check_all(call_of(device, lengths, offset, first, 1, None, ("bias", "bias")), offset, walk, device)
