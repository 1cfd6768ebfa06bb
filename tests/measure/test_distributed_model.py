"""measure/distributed_model.py: its pairs beside a count, its clock beside plain sums, its page beside itself."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from measure import distributed_model as model
from measure import distributed_model_table as table

REPOSITORY = Path(__file__).parent.parent.parent
PAGE = REPOSITORY / "measure" / "results" / "devices-model" / "model.md"


def held(length, world, layout):
    """Which elements each rank holds."""
    if layout == "contiguous":
        return np.split(np.arange(length), world)
    blocks = np.split(np.arange(length), 2 * world)
    return [np.concatenate([blocks[rank], blocks[-1 - rank]]) for rank in range(world)]


@pytest.mark.parametrize("layout", ["zigzag", "contiguous"])
@pytest.mark.parametrize("window", [None, 1, 5, 6, 17, 100])
def test_pairs_are_those_of_a_count(window, layout):
    case, ranks = model.Case(48, window, 8), held(48, 4, layout)
    offsets = [[keys - queries[:, None] for keys in ranks] for queries in ranks]
    least = -48 if window is None else 1 - window
    counted = [[((least <= one) & (one <= 0)).sum() for one in row] for row in offsets]
    assert model.pairs(case, 4, layout).tolist() == np.array(counted).tolist()
    assert model.all_pairs(case) == np.sum(counted)


@pytest.mark.parametrize("world", [2, 16, 128])
def test_zigzag_gives_every_rank_as_many_pairs(world):
    of_ranks = model.pairs(model.Case(2**17, None, 8), world, "zigzag").sum(1)
    assert of_ranks.min() == of_ranks.max()


def machine(**speeds):
    """With nothing that costs time, but for what is named."""
    fast = {"flops": 1e40, "within": 1e40, "between": 1e40, "latency": 0.0}
    return model.Machine(**{**fast, **speeds})


def test_a_ring_that_sends_in_no_time_takes_that_of_its_products():
    case, slow = model.Case(2**12, None, 8), machine(flops=1e12)
    assert model.ring(case, 16, slow, "zigzag") == pytest.approx(model.products_alone(case, 16, slow), rel=0.02)
    assert model.ring(case, 16, slow, "contiguous") > 1.8 * model.products_alone(case, 16, slow)


@pytest.mark.parametrize(("window", "layout", "hops"), [(None, "zigzag", 15), (300, "contiguous", 2), (1, "zigzag", 0)])
def test_a_ring_that_multiplies_in_no_time_takes_that_of_its_bytes(window, layout, hops):
    case, slow = model.Case(2**12, window, 8), machine(within=1e9, between=1e9)
    forward, backward = model.traffic.ring(case.sizes(16), hops)
    assert model.ring(case, 16, slow, layout) == pytest.approx((forward + backward) / 1e9)


def test_every_hop_waits_for_its_message():
    """The gradients travel beside the chunk, and once more on the way home."""
    case, slow = model.Case(2**12, None, 8), machine(latency=1.0)
    assert model.ring(case, 16, slow, "zigzag") == pytest.approx(15 + 17)


def test_a_slow_connection_holds_up_the_whole_ring():
    case, slow = model.Case(2**12, None, 8), machine(between=1e9)
    forward, backward = model.traffic.ring(case.sizes(16), 15)
    assert model.ring(case, 16, slow, "zigzag") == pytest.approx((forward + backward) / 1e9)
    assert model.ring(case, 8, slow, "zigzag") < 1e-20


def test_all_gather_and_ulysses_send_the_bytes_of_the_formulas():
    case, slow = model.Case(2**12, None, 32), machine(within=1e9)
    assert model.all_gather(case, 8, slow) == pytest.approx(sum(model.traffic.all_gather(case.sizes(8))) / 1e9)
    assert model.ulysses(case, 8, slow) == pytest.approx(sum(model.traffic.ulysses(case.sizes(8))) / 1e9)
    slow = machine(between=1e9)
    assert model.all_gather(case, 16, slow) == pytest.approx(2 * 8 * case.sizes(16).chunk() / 8e9)
    sent = sum(model.traffic.ulysses(case.sizes(16)))
    assert model.ulysses(case, 16, slow) == pytest.approx(sent / 15 * 8 / 1e9)


def test_ulysses_stops_where_ranks_do_not_divide_heads():
    assert model.ulysses(model.Case(2**12, None, 8), 16, model.Machine()) is None


def test_the_page_holds_what_the_model_says():
    rows = [line for line in PAGE.read_text().splitlines() if line.startswith("| 1")]
    few, found = model.RANKS[:3], {}
    for case in model.CASES:
        found[case] = {way: [run(case, number, model.Machine()) for number in few] for way, run in model.WAYS.items()}
    expected = table.table(few, found).splitlines()[2:]
    assert [row.split(" | ")[:7] for row in rows] == [row.removesuffix(" |").split(" | ") for row in expected]
