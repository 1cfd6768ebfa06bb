"""attention_weights gives the oracle's weights, explain names what runs, and "auto" is what it names."""

import numpy as np
import pytest
import torch

from relattn import UnsupportedError, attention_weights, explain, relative_attention
from tests.contract.cases import ALL_BACKENDS, CASES, DTYPES, expected_answer
from tests.contract.check import accumulation_eps, numpy_of, sum_lengths
from tests.contract.plain import magnitudes, plain_attention
from tests.contract.settings import random_setting
from tests.contract.subject import make_subject
from tests.oracle import assert_within_budget, max_error

pytest_plugins = ["tests.contract.fresh"]

OF_A_CPU = [backend for backend in ALL_BACKENDS if backend != "triton"]


@pytest.mark.one_in(8)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", CASES)
def test_attention_weights_are_the_oracles(name: str, dtype: str, rng: np.random.Generator) -> None:
    for kind in ("any", "any", "capped"):
        subject = make_subject(CASES[name], random_setting(rng, **CASES[name].requirements(), kind=kind), dtype)
        answer = subject.oracle(subject.numbers())
        weights = attention_weights(**subject.arguments())
        assert weights.dtype == getattr(torch, dtype)
        formula = plain_attention(subject, subject.arrays, weights.dtype).weights
        plain_error = max_error(numpy_of(formula), answer.weights)
        size = magnitudes(subject, answer, accumulation_eps(dtype), None)["weights"]
        terms = sum_lengths(subject)["weights"]
        assert_within_budget(numpy_of(weights), answer.weights, plain_error, terms, dtype, "weights", magnitude=size)


@pytest.mark.parametrize("backend", [name for name in ALL_BACKENDS if name != "dense"])
def test_weights_of_another_backend_are_refused(backend: str, rng: np.random.Generator) -> None:
    subject = make_subject(CASES["shaw"], random_setting(rng))
    with pytest.raises(UnsupportedError, match="does not keep the attention weights; expected 'dense'"):
        attention_weights(**subject.arguments(), backend=backend)


@pytest.mark.one_in(3)
@pytest.mark.parametrize("name", CASES)
def test_explain_names_what_runs(name: str, rng: np.random.Generator) -> None:
    for kind in ("bare", "any", "capped"):
        setting = random_setting(rng, **CASES[name].requirements(), kind=kind)
        subject = make_subject(CASES[name], setting)
        explanation = explain(**subject.arguments())
        answers = {backend: expected_answer(backend, CASES[name], setting, False) for backend in ALL_BACKENDS}
        chosen = explanation.chosen
        assert answers[chosen] != "refuses"
        assert all(answers[earlier] != "runs" for earlier in ALL_BACKENDS[: ALL_BACKENDS.index(chosen)])
        assert set(explanation.others) == set(ALL_BACKENDS) - {chosen}
        assert all(explanation.others.values()), "a reason for each of the others"
        assert all(f"{backend}: " in str(explanation) for backend in ALL_BACKENDS)
        auto = relative_attention(**subject.arguments())
        assert torch.equal(auto, relative_attention(**subject.arguments(), backend=chosen))


@pytest.mark.parametrize("backend", OF_A_CPU)
def test_explain_of_a_named_backend(backend: str, rng: np.random.Generator) -> None:
    subject = make_subject(CASES["none"], random_setting(rng, kind="bare"), "float32")
    explanation = explain(**subject.arguments(), backend=backend)
    assert explanation.chosen == backend
    for other in OF_A_CPU:
        assert explanation.others.get(other) in (None, [f"usable, but {backend} was named"])
    assert set(explanation.others) == set(ALL_BACKENDS) - {backend}
