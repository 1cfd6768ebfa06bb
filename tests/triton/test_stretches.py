"""The stretches of a walk: each tile lies in the one to which the offsets of its pairs belong, counted pair by pair."""

import itertools

import numpy as np
import pytest
import torch

triton = pytest.importorskip("triton")
tl = triton.language

from relattn.backends.triton.call import Table  # noqa: E402
from relattn.backends.triton.inputs import inputs  # noqa: E402
from relattn.backends.triton.masks import key_tiles, query_tiles  # noqa: E402
from relattn.backends.triton.starts import started  # noqa: E402
from relattn.backends.triton.stretches import AFTER, BEFORE, WITHIN, keys_of, queries_of  # noqa: E402
from tests.triton import everywhere  # noqa: E402
from tests.triton.calls import meta_call  # noqa: E402

TILE = 16
FAR = 2**30


@triton.jit
def bounds_kernel(x, into, OF_KEYS: tl.constexpr, TILE: tl.constexpr):
    """The ends of the three stretches, and of the whole walk, for each tile of queries, or of keys."""
    x = started(x)
    tile = tl.program_id(0)
    for STRETCH in tl.static_range(3):
        if OF_KEYS:
            begin, end = keys_of(x, tile * TILE, STRETCH, TILE)
        else:
            begin, end = queries_of(x, tile * TILE, STRETCH, TILE)
        tl.store(into + tile * 8 + 2 * STRETCH, begin)
        tl.store(into + tile * 8 + 2 * STRETCH + 1, end)
    if OF_KEYS:
        begin, end = key_tiles(x, tile * TILE, TILE)
    else:
        begin, end = query_tiles(x, tile * TILE, TILE)
    tl.store(into + tile * 8 + 6, begin)
    tl.store(into + tile * 8 + 7, end)


def call_of(
    device: str, queries: int, keys: int, offset: int, first: int, rows: int, highest: int | None, started: bool
):
    """A call with relative keys at the offsets first .. first + rows - 1, and a bias in their midst."""
    tables = {
        "relative_keys": Table(torch.zeros(1, rows, 16, device=device), first, True),
        "bias": Table(torch.zeros(1, max(rows - 2, 1), device=device), first + min(rows // 2, 1), False),
    }
    at = torch.tensor(offset, device=device) if started else offset
    given = {name: torch.zeros(1, 1, length, 16, device=device) for name, length in
             (("query", queries), ("key", keys), ("value", keys))}  # fmt: skip
    return meta_call(width=16, highest=highest, offset=at, **tables, **given)


def check(found: list[int], tile: int, of_keys: bool, offset: int, first: int, last: int) -> None:
    """Every step of the walk is in one stretch, and that is the one of its pairs."""
    stretches = {which: found[2 * which : 2 * which + 2] for which in (BEFORE.value, AFTER.value, WITHIN.value)}
    begin, end = found[6:]
    steps = [start for low, high in stretches.values() for start in range(low, high, TILE)]
    assert sorted(steps) == list(range(begin, end, TILE))
    own, other = tile * TILE + np.arange(TILE), np.arange(TILE)
    for which, (low, high) in stretches.items():
        for start in range(low, high, TILE):
            i, j = (own, start + other) if of_keys else (start + other, own)
            offsets = offset + j[None, :] - i[:, None]
            if (offsets < first).all():
                expected = BEFORE.value
            elif (offsets >= last).all():
                expected = AFTER.value
            else:
                expected = WITHIN.value
            assert which == expected, (tile, start, offsets.min(), offsets.max(), first, last)


@everywhere
@pytest.mark.parametrize("started", [False, True], ids=["an int", "a tensor"])
@pytest.mark.parametrize("of_keys", [True, False], ids=["over keys", "over queries"])
def test_every_tile_lies_in_its_stretch(of_keys: bool, started: bool, device: str) -> None:
    lengths, offsets = ((70, 100), (5, 90)), (0, -37)
    tables = [(first, 18) for first in range(-24, -8)] + [(-1, 1), (32, 16), (-300, 5), (300, 5)]
    for (queries, keys), offset, (first, rows), highest in itertools.product(lengths, offsets, tables, (None, 3)):
        call = call_of(device, queries, keys, offset, first, rows, highest, started)
        if inputs(call).relative_keys.beyond is None:
            continue
        tiles = -(-(queries if of_keys else keys) // TILE)
        into = torch.full((tiles, 8), -1, dtype=torch.int32, device=device)
        bounds_kernel[(tiles,)](inputs(call), into, OF_KEYS=of_keys, TILE=TILE)
        for tile, found in enumerate(into.tolist()):
            check(found, tile, of_keys, offset, first, first + rows)


@everywhere
@pytest.mark.parametrize("first", [FAR - 1, 1 - FAR])
@pytest.mark.parametrize("offset", [FAR - 75, 75 - FAR])
def test_offsets_near_the_ends_of_32_bits(offset: int, first: int, device: str) -> None:
    for of_keys in (True, False):
        queries, keys = (70, 5) if of_keys else (5, 70)
        into = torch.full((5, 8), -1, dtype=torch.int32, device=device)
        call = call_of(device, queries, keys, offset, first, 1, None, False)
        bounds_kernel[(5,)](inputs(call), into, OF_KEYS=of_keys, TILE=TILE)
        for tile, found in enumerate(into.tolist()):
            check(found, tile, of_keys, offset, first, first + 1)
