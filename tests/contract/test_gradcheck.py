"""Derivatives by finite differences in float64: every encoding x every backend; the second ones by dense."""

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import Tensor

from tests.contract.cases import CASES, expected_answer, runnable_pairs
from tests.contract.settings import Setting, random_setting
from tests.contract.subject import Subject, make_subject

pytestmark = pytest.mark.one_in(6)

pytest_plugins = ["tests.contract.fresh"]


def small(name: str, backend: str, rng: np.random.Generator) -> tuple[Setting, bool]:
    """A setting whose lse is finite everywhere (no finite difference of -inf), and whether to ask for lse."""
    setting = random_setting(rng, **CASES[name].requirements(), kind="small", longest=3)
    if expected_answer(backend, CASES[name], setting, True) == "runs":
        return setting, True
    return replace(setting, window=None), False


def with_more_terms(setting: Setting, rng: np.random.Generator) -> Setting:
    """Capped, with a key bias and sinks."""
    key_bias = (1, setting.num_heads) if rng.integers(2) else (setting.batch, 1)
    return replace(setting, softcap=1.5, key_bias=key_bias, sinks=str(rng.choice(["per head", "per row"])))


def function_of(subject: Subject, backend: str, return_lse: bool) -> Callable[..., tuple[Tensor, ...]]:
    """The call as a function of its tensors, which gradcheck moves in place."""

    def run(*tensors: Tensor) -> tuple[Tensor, ...]:
        result = subject.run(backend, return_lse)
        return result if return_lse else (result,)

    return run


@pytest.mark.pairs
@pytest.mark.parametrize("fast_mode", [True, pytest.param(False, marks=pytest.mark.slow)])
@pytest.mark.parametrize(("name", "backend"), runnable_pairs(), indirect=["backend"])
def test_gradcheck(name: str, backend: str, fast_mode: bool, rng: np.random.Generator) -> None:
    """Fast: the Jacobian along a random direction of its inputs and one of its outputs; else every element of it."""
    setting, return_lse = small(name, backend, rng)
    subject = make_subject(CASES[name], setting)
    tensors = tuple(subject.arrays.values())
    assert torch.autograd.gradcheck(function_of(subject, backend, return_lse), tensors, fast_mode=fast_mode)


@pytest.mark.parametrize("name", CASES)
def test_gradgradcheck_of_dense(name: str, rng: np.random.Generator) -> None:
    setting, _ = small(name, "dense", rng)
    subject = make_subject(CASES[name], with_more_terms(setting, rng) if rng.integers(2) else setting)
    tensors = tuple(subject.arrays.values())
    assert torch.autograd.gradgradcheck(function_of(subject, "dense", True), tensors, fast_mode=True)


@pytest.mark.parametrize("backend", [backend for name, backend in runnable_pairs(["shaw"])], indirect=True)
@pytest.mark.parametrize("name", ["none", "shaw", "terms_all"])
def test_gradcheck_of_softcap_key_bias_and_sinks(name: str, backend: str, rng: np.random.Generator) -> None:
    subject = make_subject(CASES[name], with_more_terms(small(name, "dense", rng)[0], rng))
    tensors = tuple(subject.arrays.values())
    assert torch.autograd.gradcheck(function_of(subject, backend, True), tensors, fast_mode=True)
    if backend == "dense":
        assert torch.autograd.gradgradcheck(function_of(subject, backend, True), tensors, fast_mode=True)
