"""The comparison sees mistakes in what belongs to no axis: key bias, cap and sinks, one mistake each."""

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import Tensor

from relattn import call
from tests.contract.cases import CASES
from tests.contract.check import assert_red, check
from tests.contract.subject import Subject, make_subject
from tests.test_mutations import GRADIENTS, mutate_problem, runs, setting_of

pytest_plugins = ["tests.contract.fresh"]

KEY_BIASES: dict[str, Callable[[Tensor], Tensor | None]] = {
    "lost": lambda a: None,
    "of the wrong sign": lambda a: -a,
    "scaled": lambda a: a * 0.5,
    "one key late": lambda a: a.roll(1, dims=-1),
    "heads rotated": lambda a: a.roll(1, dims=1),
    "batch rotated": lambda a: a.roll(1, dims=0),
}
SINKS: dict[str, Callable[[Callable[..., Tensor], Tensor, Tensor], Tensor]] = {
    "lost": lambda share, lse, sinks: torch.ones_like(share(lse, sinks)),
    "of the wrong sign": lambda share, lse, sinks: share(lse, -sinks),
    "what it takes for what it leaves": lambda share, lse, sinks: 1.0 - share(lse, sinks),
    "in lse already": lambda share, lse, sinks: share(torch.logaddexp(lse, sinks), sinks),
    "heads rotated": lambda share, lse, sinks: share(lse, sinks.roll(1, dims=1)),
    "queries rotated": lambda share, lse, sinks: share(lse, sinks.roll(1, dims=2)),
}
MORE_TERMS = {"key_bias": (2, 4), "softcap": 1.5, "sinks": "per row"}
ON_EVERY_BACKEND = pytest.mark.parametrize(
    ("name", "backend", "layout"), runs("terms_all", "starts"), indirect=["backend"]
)


def subject_of_more_terms(layout: str, rng: np.random.Generator) -> Subject:
    return make_subject(CASES["terms_all"], replace(setting_of(layout, seed=int(rng.integers(2**32))), **MORE_TERMS))


@ON_EVERY_BACKEND
def test_more_terms_are_green(name: str, backend: str, layout: str, rng: np.random.Generator) -> None:
    check(subject_of_more_terms(layout, rng), backend, "float64")


@ON_EVERY_BACKEND
@pytest.mark.parametrize("mutation", KEY_BIASES)
def test_a_mutated_key_bias_is_seen(
    mutation: str, name: str, backend: str, layout: str, rng: np.random.Generator, monkeypatch
) -> None:
    mutate_problem(monkeypatch, backend, lambda p: p._replace(key_bias=KEY_BIASES[mutation](p.key_bias)))
    assert_red(subject_of_more_terms(layout, rng), backend)


@ON_EVERY_BACKEND
@pytest.mark.parametrize("factor", [None, 0.9, 1.1])
def test_another_cap_is_seen(
    factor: float | None, name: str, backend: str, layout: str, rng: np.random.Generator, monkeypatch
) -> None:
    mutate_problem(monkeypatch, backend, lambda p: p._replace(softcap=factor and factor * p.softcap))
    assert_red(subject_of_more_terms(layout, rng), backend)


@ON_EVERY_BACKEND
@pytest.mark.parametrize("mutation", SINKS)
def test_a_mutated_sink_is_seen(
    mutation: str, name: str, backend: str, layout: str, rng: np.random.Generator, monkeypatch
) -> None:
    share = call.share
    monkeypatch.setattr(call, "share", lambda lse, sinks: SINKS[mutation](share, lse, sinks))
    assert_red(subject_of_more_terms(layout, rng), backend)


@pytest.mark.one_in(4)
@ON_EVERY_BACKEND
@pytest.mark.parametrize("mutation", GRADIENTS)
@pytest.mark.parametrize("operand", ["key_bias", "sinks"])
def test_a_mutated_gradient_of_more_terms_is_seen(
    operand: str, mutation: str, name: str, backend: str, layout: str, rng: np.random.Generator, monkeypatch
) -> None:
    if operand == "sinks":
        share = call.share
        monkeypatch.setattr(call, "share", lambda lse, sinks: share(lse, GRADIENTS[mutation](sinks)))
    else:
        mutate_problem(monkeypatch, backend, lambda p: p._replace(key_bias=GRADIENTS[mutation](p.key_bias)))
    assert_red(subject_of_more_terms(layout, rng), backend, gradient=operand)


SLOPES: dict[str, Callable[[Tensor], Tensor]] = {"lost": lambda x: 0.0 * x, "of the wrong sign": lambda x: -x}


@pytest.mark.parametrize("backend", ["dense", "blocks"], indirect=True)
@pytest.mark.parametrize("mutation", SLOPES)
def test_a_mutated_slope_of_the_cap_is_seen(mutation: str, backend: str, rng: np.random.Generator, monkeypatch) -> None:
    """The scores are right, and their gradients are not brought below the cap rightly."""
    change, tanh = SLOPES[mutation], torch.tanh
    monkeypatch.setattr(torch, "tanh", lambda x: tanh(x).detach() + change(x) - change(x).detach())
    assert_red(subject_of_more_terms("starts", rng), backend, gradient="query")
