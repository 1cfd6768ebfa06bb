"""Workloads and their tensors."""

import pytest
import torch

from relattn.bench.workload import ENCODINGS, Workload, make_case, step


def workload(encoding="relative", length=12, causal=False, mode="training", batch=1):
    return Workload(encoding, length, 8, 2, causal, mode, batch=batch)


def test_flops_are_those_of_attention_without_encoding():
    products = 2 * (2 * 2 * 12 * 12 * 8)  # Q K^T and P V of two heads, a multiplication and an addition each
    assert workload(mode="forward").flops == products
    assert workload(mode="forward", causal=True).flops == products / 2
    assert workload(mode="training").flops == 3.5 * products
    assert workload(mode="forward", batch=3).flops == 3 * products
    assert workload(mode="decoding", causal=True).flops == products / 12


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


def test_doubled_moves_every_number_by_one_relative_change():
    case = make_case(workload())
    moved = case.doubled(2.0**-10)
    for name, tensor in moved.leaves.items():
        assert tensor.dtype == torch.float64
        ratio = tensor / case.leaves[name].double()
        assert torch.allclose((ratio - 1).abs(), torch.full_like(ratio, 2.0**-10), atol=1e-12)
        assert (ratio > 1).any(), name
        assert (ratio < 1).any(), name
    assert torch.equal(case.doubled().query, case.query.double())


def test_a_decoder_sees_a_part_of_its_cache():
    case = make_case(workload(mode="decoding", causal=True, batch=3))
    assert case.query.shape == case.upstream.shape == (3, 2, 1, 8)
    assert case.key.shape == case.value.shape == (3, 2, 12, 8)
    assert not case.key.is_contiguous()
    assert set(step(case, lambda: case.query)) == {"output"}
