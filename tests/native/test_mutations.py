"""The comparison in float32 sees what is wrong in the problem that the kernels get, as in `test_mutations`."""

import numpy as np
import pytest
import torch

from relattn.backends.cpu import operator
from tests.contract.cases import CASES
from tests.contract.check import assert_red
from tests.contract.subject import Subject, make_subject
from tests.native.passes import check
from tests.native.test_padding import both_passes
from tests.test_mutations import POSITIONS, PROBLEM_MUTATIONS, mutate_problem, setting_of

either_layout = pytest.mark.parametrize("layout", POSITIONS)


def subject_of(layout: str, rng: np.random.Generator) -> Subject:
    return make_subject(CASES["terms_all"], setting_of(layout, seed=int(rng.integers(2**32))), "float32")


@both_passes
@either_layout
def test_control_is_green(layout: str, most: int, rng: np.random.Generator, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(operator, "QUERIES_OF_A_KEY", most)
    check(subject_of(layout, rng), "native", "float32")


@pytest.mark.one_in(3)
@torch.no_grad()
@both_passes
@either_layout
@pytest.mark.parametrize("mutation", PROBLEM_MUTATIONS)
def test_a_mutated_problem_is_seen(
    mutation: str, layout: str, most: int, rng: np.random.Generator, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(operator, "QUERIES_OF_A_KEY", most)
    mutate_problem(monkeypatch, "native", PROBLEM_MUTATIONS[mutation])
    assert_red(subject_of(layout, rng), "native", "float32")
