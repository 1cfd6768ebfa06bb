"""The bytes that a rank sends, and how far chunks travel: formulas beside plain counts."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
import torch

from measure.ring_bound import full_table_gradient, hidden_from
from relattn.distributed import traffic
from relattn.distributed.traffic import Sizes, Traffic

SIZES = Sizes(
    world=4, batch=3, query_heads=8, key_heads=4, queries=10, keys=6, width=5, value_width=7, size=2, sums=4
)  # fmt: skip


def tensor(heads, length, width, dtype=torch.bfloat16):
    return torch.empty(3, heads, length, width, dtype=dtype)


def held(world, part, layout):
    """Which elements each rank holds."""
    if layout == "contiguous":
        return np.split(np.arange(world * part), world)
    blocks = np.split(np.arange(world * part), 2 * world)
    return [np.concatenate([blocks[rank], blocks[-1 - rank]]) for rank in range(world)]


def hops_counted(world, queries, keys, lowest, highest, layout):
    """Over every pair."""
    furthest = 0
    query_sides, key_sides = held(world, queries, layout), held(world, keys, layout)
    for rank, hop in itertools.product(range(world), range(world)):
        offsets = key_sides[(rank - hop) % world] - query_sides[rank][:, None]
        seen = (offsets >= (-math.inf if lowest is None else lowest)) & (
            offsets <= (math.inf if highest is None else highest)
        )
        furthest = max(furthest, hop if seen.any() else 0)
    return furthest


LIMITS = (None, -40, -9, -8, -7, -3, -2, -1, 0, 1, 2, 4, 6, 11, 40)


@pytest.mark.one_in(5)
@pytest.mark.parametrize("layout", ["zigzag", "contiguous"])
@pytest.mark.parametrize("world", [1, 2, 3, 4, 7])
def test_hops_are_those_of_a_count_of_pairs(world, layout):
    for queries, keys in [(2, 2), (4, 4), (2, 6), (6, 2), (4, 0), (0, 4), (8, 8)]:
        for lowest, highest in itertools.product(LIMITS, LIMITS):
            given = world, queries, keys, lowest, highest, layout
            assert traffic.hops(*given) == hops_counted(*given), given


def test_hops_of_parts_of_odd_length():
    for queries, keys, lowest, highest in itertools.product((1, 3, 5), (1, 3, 5), LIMITS, LIMITS):
        given = 4, queries, keys, lowest, highest, "contiguous"
        assert traffic.hops(*given) == hops_counted(*given), given


def test_hops_of_usual_calls():
    assert traffic.hops(8, 512, 512, None, None, "zigzag") == 7
    assert traffic.hops(8, 512, 512, None, 0, "contiguous") == 7
    assert traffic.hops(8, 512, 512, -512, 0, "contiguous") == 1
    assert traffic.hops(8, 512, 512, -513, 0, "contiguous") == 2
    assert traffic.hops(8, 512, 512, -1, 0, "zigzag") == 7
    assert traffic.hops(8, 512, 512, 0, 0, "zigzag") == 0


def test_the_ring_sends_chunks_and_their_gradients():
    key, value = tensor(4, 6, 5), tensor(4, 6, 7)
    by_key, by_value = tensor(4, 6, 5, torch.float32), tensor(4, 6, 7, torch.float32)
    chunk, gradients = key.nbytes + value.nbytes, by_key.nbytes + by_value.nbytes
    assert traffic.ring(SIZES, 3) == Traffic(3 * chunk, 3 * chunk + 4 * gradients)
    assert traffic.ring(SIZES, 1) == Traffic(chunk, chunk + 2 * gradients)
    assert traffic.ring(SIZES, 0) == Traffic(0, 0)


def test_all_gather_sends_its_chunk_to_all_others_both_ways():
    chunk = tensor(4, 6, 5).nbytes + tensor(4, 6, 7).nbytes
    assert traffic.all_gather(SIZES) == Traffic(3 * chunk, 3 * chunk)


def test_what_has_no_gradient_sends_none():
    key_mask = torch.ones(3, 6, dtype=torch.bool)
    assert traffic.gathered(4, key_mask.nbytes, differentiable=False) == Traffic(54, 0)
    assert traffic.gathered(4, 18, differentiable=True) == Traffic(54, 54)
    assert Traffic(1, 2).plus(Traffic(30, 40)) == Traffic(31, 42)


def exchanged(*tensors):
    """Each is cut into one part for each of 4 ranks by its heads or positions, and 3 of them leave."""
    return sum(given.nbytes // 4 * 3 for given in tensors)


def test_ulysses_sends_all_but_its_own_share():
    query, key, value = tensor(8, 10, 5), tensor(4, 6, 5), tensor(4, 6, 7)
    output, lse = tensor(8, 10, 7), tensor(8, 10, 1, torch.float32)
    without = exchanged(query, key, value, output)
    whole = without + exchanged(lse)
    assert traffic.ulysses(SIZES) == Traffic(whole, without)
    assert traffic.ulysses(SIZES, reads_lse=True) == Traffic(whole, whole)
    relative = exchanged(tensor(8, 10, 9))
    assert traffic.ulysses(SIZES, relative_width=9) == Traffic(whole + relative, without + relative)
    wider = exchanged(tensor(8, 10, 7, torch.float32)) - exchanged(output)
    assert traffic.ulysses(SIZES, output_size=4) == Traffic(whole + wider, without + wider)


def test_one_rank_sends_nothing():
    alone = Sizes(1, 3, 8, 4, 10, 6, 5, 7, 2, 4)
    assert traffic.all_gather(alone) == traffic.ulysses(alone, reads_lse=True) == Traffic(0, 0)
    assert traffic.ring(alone, traffic.hops(1, 10, 6, None, None, "zigzag")) == Traffic(0, 0)


@pytest.mark.parametrize("visible", [1.0, 0.5])
@pytest.mark.parametrize(("size", "sums"), [(2, 4), (4, 4), (8, 8)])
def test_at_the_bound_a_hop_takes_as_long_as_its_products(size, sums, visible):
    flops, bandwidth, heads, key_heads, width, keys = 2e14, 5e10, 32, 8, 128, 777
    bound = hidden_from(heads, key_heads, size, sums, flops, bandwidth, visible)
    one = Sizes(4, 1, heads, key_heads, 1, keys, width, width, size, sums)

    def product(queries):
        """Seconds of one product of two matrices, over the pairs that are visible."""
        return 2 * heads * queries * keys * width * visible / flops

    assert 2 * product(bound.forward) == pytest.approx(one.chunk() / bandwidth, rel=1e-12)
    assert 5 * product(bound.backward) == pytest.approx((one.chunk() + one.gradients()) / bandwidth, rel=1e-12)


def test_a_full_table_of_a_long_sequence():
    table = torch.empty(8, 2 * 131_072 - 1, 64, device="meta")
    assert full_table_gradient(131_072, 8, 64, 4) == table.nbytes
    assert round(table.nbytes / 1e6) == 537
