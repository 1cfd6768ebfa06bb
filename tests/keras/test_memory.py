"""A training step needs memory for blocks of queries, not for all pairs, unless another choice is made."""

import pytest

from measure.studies.keras_steps import ARTICLE, BACKENDS, CHOSEN, NAIVE, in_a_process

LENGTH = "4096"


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("backend", BACKENDS)
def test_a_long_training_step_takes_an_eighth_of_the_naive_formula(backend):
    """With relative keys in RelativeMultiHeadAttention's loop, and in the article's Attention."""
    naive = in_a_process(backend, "peak", NAIVE, LENGTH)
    assert in_a_process(backend, "peak", CHOSEN, LENGTH) <= naive / 8
    assert in_a_process(backend, "peak", ARTICLE, LENGTH) <= naive / 8
