"""Padding never matters to the kernels, whichever of the two forward passes meets it."""

import pytest
import torch

from relattn.backends.cpu import operator
from tests.contract.cases import CASES
from tests.contract.padding import (
    POISON,
    WAYS,
    assert_gradients_of_dead_rows_do_not_matter,
    assert_padding_does_not_matter,
)

both_passes = pytest.mark.parametrize("most", [0, 64], ids=["packed keys", "keys where they lie"])
"""By the number of queries up to which keys are read where they lie, in calls without gradients."""


@pytest.mark.one_in(4)
@both_passes
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("name", ["none", "terms_all", "txl"])
def test_padding_does_not_matter(name: str, way: str, most: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(operator, "QUERIES_OF_A_KEY", most)
    with torch.set_grad_enabled(most == 0):
        assert_padding_does_not_matter(CASES[name], way, "native", POISON, 0)


@pytest.mark.parametrize("way", [way for way in WAYS if way != "key_mask"])
def test_gradients_that_come_in_at_dead_rows(way: str) -> None:
    assert_gradients_of_dead_rows_do_not_matter(CASES["terms_all"], way, "native")
