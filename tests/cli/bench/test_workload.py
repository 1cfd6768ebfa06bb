"""Workloads and their tensors."""

from dataclasses import replace

import pytest
import torch

import relattn
from measure.studies.ratios import pairs
from relattn.cli.bench.case import make_case, step
from relattn.cli.bench.relattn_candidates import arguments
from relattn.cli.bench.workload import ENCODINGS, Workload


def workload(encoding="relative", length=12, causal=False, mode="training", batch=1):
    return Workload(encoding, length, 8, 2, causal, mode, batch=batch)


def test_flops_are_those_of_attention_without_encoding():
    products = 2 * (2 * 2 * 12 * 12 * 8)  # Q K^T and P V of two heads, a multiplication and an addition each
    assert workload(mode="forward").flops == products
    assert workload(mode="forward", causal=True).flops == products / 2
    assert workload(mode="training").flops == 3.5 * products
    assert workload(mode="forward", batch=3).flops == 3 * products
    assert workload(mode="decoding", causal=True).flops == products / 12


@pytest.mark.parametrize(
    ("length", "grid"), [(1, (1, 1)), (13, (1, 13)), (160, (10, 16)), (512, (16, 32)), (4096, (64, 64))]
)
def test_a_grid_is_as_square_as_can_be(length, grid):
    assert workload("grid-bias", length).grid == grid


@pytest.mark.parametrize(
    ("encoding", "shapes"),
    [
        ("grid-bias", [(5 * 7, 2)]),
        ("decomposed", [(1, 5, 8), (1, 7, 8)]),
        ("layout", [(32, 2), (64, 2), (64, 2)]),
    ],
)
def test_what_encodings_on_axes_are(encoding, shapes):
    """On a grid of 3 x 4."""
    case = make_case(workload(encoding, batch=3))
    assert [tuple(parameter.shape) for parameter in case.encoding.parameters()] == shapes
    assert set(case.encoding.axes) - {"sequence"} == {"x", "y"}
    assert arguments(case, "dense")["query_position"] == {"sequence": 0, **case.places}


def test_words_stand_on_a_page_of_their_own():
    case, same = (make_case(workload("layout", length=500, batch=2)) for _ in range(2))
    for axis, places in case.places.items():
        assert torch.equal(places, same.places[axis])
        assert places.shape == (2, 500)
        assert not torch.equal(*places)
        assert 0 <= places.min() < 10
        assert 990 < places.max() <= 1000
    assert not torch.equal(case.places["x"], case.places["y"])


@pytest.mark.parametrize("encoding", ENCODINGS)
def test_a_case_is_always_the_same_and_no_term_is_zero(encoding):
    first, second = make_case(workload(encoding)), make_case(workload(encoding))
    for name, tensor in first.leaves.items():
        assert torch.equal(tensor, second.leaves[name])
        assert (tensor != 0).all(), name
    assert len(first.leaves) == 3 + (0 if first.encoding is None else len(list(first.encoding.parameters())))


def test_a_step_gives_the_output_and_where_it_trains_every_gradient():
    case = make_case(workload())
    found = step(case, lambda: 2 * case.query + 3 * case.key + case.value + case.encoding.relative_keys.sum())
    assert set(found) == {"output", *(f"gradient of {name}" for name in case.leaves)}
    assert torch.equal(found["gradient of key"], 3 * case.upstream)
    case = make_case(workload(mode="forward"))
    assert set(step(case, lambda: case.query)) == {"output"}


def test_a_decoder_sees_a_part_of_its_cache():
    case = make_case(workload(mode="decoding", causal=True, batch=3))
    assert case.query.shape == case.upstream.shape == (3, 2, 1, 8)
    assert case.key.shape == case.value.shape == (3, 2, 12, 8)
    assert not case.key.is_contiguous()
    assert set(step(case, lambda: case.query)) == {"output"}


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("window", [None, 0, 3, 11, 50])
def test_pairs_are_those_that_are_visible(window, causal):
    """Counted in the weights of attention itself."""
    work = replace(workload(length=12, causal=causal, mode="forward"), window=window)
    case = make_case(work)
    weights = relattn.attention_weights(case.query, case.key, case.value, is_causal=causal, window=work.sides)
    assert (weights[0, 0] > 0).sum() == pairs(work)
    one = replace(work, mode="decoding", causal=True)
    assert pairs(one) == 1 + min(11, 11 if window is None else window)


def test_under_a_window_a_table_has_rows_for_what_is_visible():
    table = make_case(replace(workload(length=12), window=3)).encoding.relative_keys
    assert table.shape == (1, 7, 8)
    assert make_case(replace(workload(length=12), window=30)).encoding.relative_keys.shape == (1, 23, 8)
