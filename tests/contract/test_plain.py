"""The plain formula is the oracle's formula: a wrong one would widen the budget of every other test."""

import numpy as np
import pytest
import torch

from tests.contract.axes import AXES_CASES
from tests.contract.cases import CASES
from tests.contract.check import draw_cotangents, gradients_of, numpy_of, sum_lengths
from tests.contract.plain import magnitudes, plain_attention
from tests.contract.settings import random_setting
from tests.contract.subject import make_subject
from tests.oracle import assert_within_budget, complex_step_gradients
from tests.oracle.budget import EPS

pytest_plugins = ["tests.contract.fresh"]


@pytest.mark.one_in(4)
@pytest.mark.parametrize("name", [*CASES, *AXES_CASES])
def test_plain_formula_in_float64_is_the_oracle(name: str, rng: np.random.Generator) -> None:
    case = (CASES | AXES_CASES)[name]
    for kind in ("any", "any", "capped"):
        subject = make_subject(case, random_setting(rng, **case.requirements(), kind=kind))
        numbers = subject.numbers()
        answer = subject.oracle(numbers)
        cotangents = draw_cotangents(subject, answer, "float64")
        exact = complex_step_gradients(subject.oracle, numbers, cotangents)
        output, lse, _ = plain_attention(subject, subject.arrays, torch.float64)
        ours = gradients_of(output, lse, subject.arrays, cotangents)
        pairs = {"output": (output, answer.output), "lse": (lse, answer.lse)}
        pairs |= {f"gradient of {array}": (ours[array], exact[array]) for array in ours}
        sizes, terms = magnitudes(subject, answer, EPS["float64"], cotangents), sum_lengths(subject)
        for what, (actual, truth) in pairs.items():
            assert_within_budget(
                numpy_of(actual), truth, 0.0, terms[what], "float64", f"plain {what}", magnitude=sizes[what]
            )
