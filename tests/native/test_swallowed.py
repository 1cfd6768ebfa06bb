"""Float masks of numbers so low that float32 loses the scores beside them: whole rows become uniform."""

import numpy as np
import pytest
import torch

from relattn.backends.cpu import operator
from tests.native.sets import every_set
from tests.native.test_padding import both_passes
from tests.test_axisless_terms import hold_what_a_mask_swallows
from tests.test_blocks import LENGTH, SWALLOWING, hold_a_swallowed_row_uniform

pytestmark = pytest.mark.pairs


@every_set
@both_passes
@pytest.mark.parametrize("length", [LENGTH, 60])
@pytest.mark.parametrize("constant", SWALLOWING)
def test_a_number_that_swallows_a_rows_scores_leaves_it_uniform(
    constant: float, length: int, most: int, instructions: str, rng: np.random.Generator, small_blocks, monkeypatch
) -> None:
    """Answers with and without gradients, and these, in one block and across several."""
    monkeypatch.setattr(operator, "QUERIES_OF_A_KEY", most)
    hold_a_swallowed_row_uniform("native", constant, length)


@torch.no_grad()
@every_set
@both_passes
def test_a_mask_of_the_lowest_number_swallows_a_key_bias(most: int, instructions: str, monkeypatch) -> None:
    monkeypatch.setattr(operator, "QUERIES_OF_A_KEY", most)
    hold_what_a_mask_swallows("native", torch.float32, rtol=1e-6, atol=1e-6)
