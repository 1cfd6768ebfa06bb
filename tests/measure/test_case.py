"""Cases in float64, and with the terms of the encoding made beforehand."""

from dataclasses import replace

import pytest
import torch

import relattn
from measure.case import case_of, doubled
from relattn.cli.bench.case import make_case, step
from relattn.cli.bench.relattn_candidates import relattn_call
from tests.cli.bench.test_workload import workload


def test_doubled_moves_every_number_by_one_relative_change():
    case = make_case(workload())
    moved = doubled(case, 2.0**-10)
    for name, tensor in moved.leaves.items():
        assert tensor.dtype == torch.float64
        ratio = tensor / case.leaves[name].double()
        assert torch.allclose((ratio - 1).abs(), torch.full_like(ratio, 2.0**-10), atol=1e-12)
        assert (ratio > 1).any(), name
        assert (ratio < 1).any(), name
    assert torch.equal(doubled(case).query, case.query.double())


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("encoding", ["transformer-xl", "disentangled", "relative", "t5", "shaw"])
def test_lowered_is_the_same_attention_with_the_terms_as_leaves(encoding, causal):
    work = workload(encoding, causal=causal)
    whole, lowered = case_of(work), case_of(replace(work, lowered=True))
    answers = [step(case, relattn_call(case, "dense")) for case in (whole, lowered)]
    torch.testing.assert_close(answers[0]["output"], answers[1]["output"])
    torch.testing.assert_close(answers[0]["gradient of key"], answers[1]["gradient of key"])
    assert isinstance(lowered.encoding, relattn.ScoreTerms)
    assert all(tensor.is_leaf and tensor.requires_grad for tensor in lowered.leaves.values())
    names = {
        "transformer-xl": ["relative_query", "relative_keys"],
        "disentangled": ["relative_keys", "relative_queries"],
    }
    names |= {"relative": ["relative_keys"], "t5": ["bias"], "shaw": ["relative_keys", "relative_values"]}
    assert list(lowered.leaves)[3:] == names[encoding]


def test_the_gradients_of_terms_are_moved_on_their_way_to_the_parameters():
    """The same is added to all scores of a row: the gradient is 0, but for what the moved gradients leave over."""
    case = make_case(workload("disentangled", length=40))
    moved = [step(double, relattn_call(double, "reference")) for double in (doubled(case), doubled(case, 2.0**-10))]
    still, shaken = (answer["gradient of pos_key_proj.bias"].abs().max() for answer in moved)
    assert still < 1e-12
    assert shaken > 1e-5
