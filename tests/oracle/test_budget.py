"""The error budget is the stated formula, and refuses what it must."""

import math

import numpy as np
import pytest

from tests.oracle.budget import assert_within_budget, budget, max_error


def test_budget_lets_a_correct_sum_pass_and_a_wrong_one_not(rng):
    x, y = rng.standard_normal((2, 50, 64)).astype(np.float32)
    oracle = (x.astype(np.float64) * y).sum(-1)
    one_by_one = np.zeros(50, dtype=np.float32)
    for column in range(64):
        one_by_one += x[:, column] * y[:, column]
    assert_within_budget(one_by_one, oracle, 0.0, terms=64, dtype="float32", name="sum")
    wrong = one_by_one.copy()
    wrong[7] += 1e-4 * np.abs(oracle).max()
    with pytest.raises(AssertionError, match=r"sum \(float32\): max error .* at \(7,\) exceeds the budget .* 64 terms"):
        assert_within_budget(wrong, oracle, 0.0, terms=64, dtype="float32", name="sum")


def test_budget_is_the_stated_formula():
    oracle = np.array([3.0, -4.0, -np.inf])
    c = math.sqrt(math.log(6 / 1e-9))
    assert budget(oracle, 0.5, 16, "float32") == pytest.approx(1.0 + (c * 4 + 1) * 2**-23 * 4, rel=1e-14)
    assert budget(oracle, 0.0, 16, "bfloat16") == pytest.approx((c * 4 * 2**-23 + 2**-7) * 4, rel=1e-14)
    assert budget(oracle, 0.0, 16, "float64", 10.0) == pytest.approx((c * 2**0.5 * 4 + 1) * 2**-52 * 10, rel=1e-14)


def test_max_error_asks_for_infinities_in_the_same_places():
    oracle = np.array([-np.inf, 2.0])
    assert max_error(np.array([-np.inf, 2.5]), oracle) == 0.5
    for actual in ([0.0, 2.0], [np.inf, 2.0], [-np.inf, np.nan], [-np.inf, -np.inf]):
        assert max_error(np.array(actual), oracle) == np.inf
        with pytest.raises(AssertionError, match="lse"):
            assert_within_budget(np.array(actual), oracle, 0.1, 1, "float32", "lse")
    with pytest.raises(AssertionError, match="allows anything"):
        assert_within_budget(oracle, oracle, np.inf, 1, "float32", "lse")
    with pytest.raises(AssertionError, match="shape"):
        max_error(np.zeros((2, 1)), oracle)
