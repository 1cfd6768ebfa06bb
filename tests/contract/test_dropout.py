"""Dropout of the attention weights: drawn from torch's generator, independently for every weight, rescaled, once.

With the identity for values the output is the dropped weights themselves.
"""

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from relattn import attention_and_lse, attention_weights, relative_attention
from tests import seeds
from tests.contract.cases import CASES, DIFFERENT, expected_answer, runnable_pairs
from tests.contract.settings import Setting
from tests.contract.subject import Subject, make_subject

pytestmark = pytest.mark.one_in(8)

pytest_plugins = ["tests.contract.fresh"]

LENGTH = 24
P = 0.3
PAIRS = runnable_pairs(DIFFERENT)
"""Dropout comes after the scores, whatever made them."""
SIGMAS = 6.5  # 8e-11 of a normal distribution lies further out


def dropping(name: str, rng: np.random.Generator) -> Subject:
    """A call whose values are the identity, and relative values zero; the queries of all heads share their keys."""
    needs = CASES[name].requirements()
    heads = needs.get("num_heads") or 4
    is_causal, seed = bool(needs.get("is_causal")), int(rng.integers(2**32))
    setting = Setting(2, heads, 1, LENGTH, LENGTH, LENGTH, LENGTH, is_causal=is_causal, seed=seed)
    subject = make_subject(CASES[name], setting)
    with torch.no_grad():
        subject.arrays["value"].copy_(torch.eye(LENGTH))
        for array_name, array in subject.arrays.items():
            if array_name.endswith("relative_values"):
                array.zero_()
            elif array_name != "value":
                array.mul_(0.3)  # no weight so small that it looks like a dropped one
    return subject


def run(subject: Subject, backend: str, seed: int, p: float = P, attend: Callable = relative_attention) -> Any:
    seeds.start_torch(seed)
    return attend(**subject.arguments(), backend=backend, dropout_p=p)


def assert_share(hits: Tensor, expected: float, what: str) -> None:
    """The share of True lies within what as many independent draws allow."""
    share = hits.double().mean().item()
    spread = SIGMAS * math.sqrt(expected * (1.0 - expected) / hits.numel())
    assert abs(share - expected) < spread, f"{what}: share {share:.3f}, expected {expected:.3f} +- {spread:.3f}"


@pytest.mark.parametrize(("name", "backend"), PAIRS, indirect=["backend"])
def test_weights_drop_independently(name: str, backend: str, rng: np.random.Generator) -> None:
    subject = dropping(name, rng)
    arguments = subject.arguments()
    weights = attention_weights(**arguments)
    dropped = run(subject, backend, seed=int(rng.integers(2**32)))
    kept, visible = dropped != 0, weights[0, 0] > 0
    torch.testing.assert_close(dropped, weights * kept / (1.0 - P))
    masks = kept[:, :, visible].flatten(0, 1)
    for mask in masks:
        assert_share(~mask, P, "weights dropped in one head")
    alike = P**2 + (1.0 - P) ** 2
    for a in range(len(masks)):
        for b in range(a):
            assert_share(masks[a] == masks[b], alike, f"agreement of heads {b} and {a}, counted over the batch")
    both = visible[1:] & visible[:-1]
    assert_share((kept[:, :, 1:] == kept[:, :, :-1])[:, :, both], alike, "agreement of neighbouring queries")
    both = visible[:, 1:] & visible[:, :-1]
    assert_share((kept[..., 1:] == kept[..., :-1])[:, :, both], alike, "agreement of neighbouring keys")


@pytest.mark.parametrize(("name", "backend"), PAIRS, indirect=["backend"])
def test_dropout_follows_the_generator(name: str, backend: str, rng: np.random.Generator) -> None:
    subject = dropping(name, rng)
    first = run(subject, backend, seed=3)
    following = relative_attention(**subject.arguments(), backend=backend, dropout_p=P)
    assert torch.equal(first, run(subject, backend, seed=3))
    assert not torch.equal(first, run(subject, backend, seed=4))
    assert not torch.equal(first, following), "the second call must not repeat the first one's mask"
    assert torch.equal(run(subject, backend, seed=5, p=0.0), relative_attention(**subject.arguments(), backend=backend))


@pytest.mark.parametrize(("name", "backend"), PAIRS, indirect=["backend"])
def test_everything_dropped_is_zero_with_zero_gradients(name: str, backend: str, rng: np.random.Generator) -> None:
    subject = dropping(name, rng)
    output = run(subject, backend, seed=0, p=1.0)
    arrays = list(subject.arrays.values())
    gradients = torch.autograd.grad(output.sum(), arrays, allow_unused=True, materialize_grads=True)
    assert not output.any()
    assert not any(gradient.any() for gradient in gradients), "NaN counts as any()"


WITH_VALUES = [(n, b) for n, b in runnable_pairs() if n in ("shaw", "shaw_per_head", "terms_all", "shaw+shaw_values")]


@pytest.mark.parametrize(("name", "backend"), WITH_VALUES, indirect=["backend"])
def test_relative_values_share_the_dropped_weights(name: str, backend: str, rng: np.random.Generator) -> None:
    subject = dropping(name, rng)
    dropped = run(subject, backend, seed=1)
    tables = [array for array_name, array in subject.arrays.items() if array_name.endswith("relative_values")]
    with torch.no_grad():
        for table in tables:
            table.normal_()
        subject.arrays["value"].zero_()
    by_tables = run(subject, backend, seed=1)
    with torch.no_grad():
        pair_values = pairs_of_relative_values(subject)
    torch.testing.assert_close(by_tables, torch.einsum("bhij,hijd->bhid", dropped, pair_values))


def pairs_of_relative_values(subject: Subject) -> Tensor:
    """RV[d] of every pair, [H, Lq, Lk, D]."""
    offsets = torch.arange(LENGTH) - torch.arange(LENGTH).unsqueeze(1)
    total = torch.zeros(subject.setting.num_heads, LENGTH, LENGTH, LENGTH, dtype=torch.float64)
    for i, part in enumerate(subject.parts):
        distances = part.settings["max_distance"]
        left, right = distances if isinstance(distances, tuple) else (distances, distances)
        total = total + subject.arrays[f"{i}.relative_values"][:, offsets.clamp(-left, right) + left]
    for name, table in subject.hand_tables.items():
        if name == "relative_values":
            total = total + subject.arrays[name][:, (offsets - table.first).clamp(0, (table.rows or 0) - 1)]
    return total


EXPECTED = [pair for pair in runnable_pairs() if pair[0] in ("terms_all", "rope")]


@pytest.mark.one_in(4)
@pytest.mark.parametrize(("name", "backend"), EXPECTED, indirect=["backend"])
def test_the_expectation_is_the_answer_without_dropout(name: str, backend: str, rng: np.random.Generator) -> None:
    subject = make_subject(CASES[name], Setting(1, 2, 1, 4, 5, 4, 3, seed=int(rng.integers(2**32))))
    with torch.no_grad():
        draws = torch.stack([run(subject, backend, seed) for seed in range(400)])
        exact = run(subject, backend, 0, p=0.0)
    spread = SIGMAS * draws.std(0) / math.sqrt(len(draws))
    assert ((draws.mean(0) - exact).abs() < spread).all()


@pytest.mark.parametrize(("name", "backend"), PAIRS, indirect=["backend"])
def test_the_gradient_belongs_to_the_dropped_weights(name: str, backend: str, rng: np.random.Generator) -> None:
    needs = CASES[name].requirements()
    is_causal, seed = bool(needs.get("is_causal")), int(rng.integers(2**32))
    setting = Setting(1, needs.get("num_heads") or 2, 1, 2, 2, 2, 1, is_causal=is_causal, seed=seed)
    subject = make_subject(CASES[name], setting)
    tensors = tuple(subject.arrays.values())
    assert torch.autograd.gradcheck(lambda *_: run(subject, backend, seed), tensors, fast_mode=True)


@pytest.mark.parametrize(("name", "backend"), PAIRS, indirect=["backend"])
def test_lse_is_that_without_dropout(name: str, backend: str, rng: np.random.Generator) -> None:
    subject = dropping(name, rng)
    if expected_answer(backend, CASES[name], subject.setting, True) == "runs":
        _, dropped = run(subject, backend, seed=0, attend=attention_and_lse)
        _, whole = run(subject, backend, seed=0, p=0.0, attend=attention_and_lse)
        assert torch.equal(dropped, whole)
