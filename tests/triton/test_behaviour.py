"""What the kernels owe beside right numbers: rows that see nothing, dropout, bit-equal runs, any layout."""

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from relattn import attention_and_lse, attention_weights, relative_attention
from tests import seeds
from tests.contract.calls import gradients
from tests.contract.cases import CASES
from tests.contract.operators import LAYOUTS, laid_out
from tests.contract.settings import Setting
from tests.contract.subject import Subject, make_subject
from tests.test_blocks import SWALLOWING, hold_a_swallowed_row_uniform
from tests.triton import everywhere, one_order

pytest_plugins = ["tests.contract.fresh"]

CLOSE = {"rtol": 1e-4, "atol": 1e-4}
"""Two ways of summing a few dozen terms of size 1 to 10 in float32; a term gone wrong is a thousand times larger."""
EVERY_TABLE = "terms_all"
QUERIES, KEYS = 18, 20


def subject_of(name: str, device: str, rng: np.random.Generator, **changes: Any) -> Subject:
    """A call that crosses tiles, of queries that share keys."""
    seed = int(rng.integers(2**32))
    setting = replace(Setting(2, 2, 1, QUERIES, KEYS, 4, 4, query_position=5, is_causal=True, seed=seed), **changes)
    return make_subject(CASES[name], setting, "float32").on(device)


def outcome(subject: Subject, **changes: Any) -> tuple[Tensor, ...]:
    """Output, lse and every gradient."""
    answers = attention_and_lse(**{**subject.arguments(), **changes}, backend="triton")
    weights = [torch.ones_like(answer).cumsum(-1) for answer in answers]
    found = torch.autograd.grad(answers, list(subject.arrays.values()), weights, materialize_grads=True)
    return (*answers, *found)


@everywhere
@pytest.mark.parametrize("empty", ["query_length", "key_length", "batch"])
def test_empty_axes(empty: str, device: str, rng: np.random.Generator) -> None:
    output, lse, *found = outcome(subject_of(EVERY_TABLE, device, rng, **{empty: 0}))
    assert not output.any()
    assert (lse == -torch.inf).all()
    assert not any(gradient.any() for gradient in found)


CLOSING: dict[str, dict[str, Any]] = {
    "key mask": {"key_mask": np.zeros((2, KEYS), dtype=bool)},
    "segments": {"segment_ids": (np.zeros((2, QUERIES), dtype=int), np.ones((2, KEYS), dtype=int))},
    "boolean mask": {"attn_mask": np.zeros((1, 1, QUERIES, KEYS), dtype=bool)},
    "float mask": {"attn_mask": np.full((2, 1, QUERIES, KEYS), -np.inf)},
    "causality": {"key_position": 100},
    "window": {"window": (0, 0), "key_position": 100},
}


@everywhere
@pytest.mark.parametrize("closing", CLOSING)
def test_a_row_that_sees_nothing_has_no_gradient(closing: str, device: str, rng: np.random.Generator) -> None:
    """NaN would count as a gradient."""
    output, lse, *found = outcome(subject_of(EVERY_TABLE, device, rng, **CLOSING[closing]))
    assert not output.any()
    assert (lse == -torch.inf).all()
    assert not any(gradient.any() for gradient in found)


@everywhere
@pytest.mark.parametrize("few", [0, 8], ids=["in tiles", "few queries"])
@pytest.mark.parametrize("constant", SWALLOWING)
def test_a_number_that_swallows_a_rows_scores_leaves_it_uniform(
    constant: float, few: int, device: str, rng: np.random.Generator, monkeypatch: pytest.MonkeyPatch
) -> None:
    from relattn.backends.triton.kernels import decoding, forward

    monkeypatch.setattr(forward, "MAX_QUERIES", few)
    monkeypatch.setattr(decoding, "NUMBERS", 4 * 16)
    monkeypatch.setattr(decoding, "KEYS_PER_SPLIT", 4)
    with torch.device(device):
        hold_a_swallowed_row_uniform("triton", constant)


@everywhere
@pytest.mark.parametrize("name", ["relative_per_head", "shaw", "t5", "key_query", EVERY_TABLE])
def test_runs_are_bit_equal_where_that_is_asked_for(
    name: str, device: str, rng: np.random.Generator, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Tables that all heads and many pairs share, whose gradients atomics would sum in another order each time."""
    longer = {"batch": 4, "query_length": 700, "key_length": 700} if device == "cuda" else {}
    subject = subject_of(name, device, rng, **longer)
    monkeypatch.setattr(torch, "are_deterministic_algorithms_enabled", lambda: True)
    first, second = outcome(subject), outcome(subject)
    assert all(torch.equal(a, b) for a, b in zip(first, second, strict=True))


@everywhere
@pytest.mark.parametrize("layout", LAYOUTS)
def test_inputs_that_are_not_contiguous(layout: str, device: str, rng: np.random.Generator) -> None:
    subject = subject_of("shaw", device, rng, num_heads=4, num_kv_heads=2)
    laid, dense = laid_out(layout, subject)
    with one_order(device):
        found, expected = outcome(subject, **laid), outcome(subject, **dense)
    assert all(torch.equal(a, b) for a, b in zip(found, expected, strict=True))


@everywhere
@pytest.mark.parametrize("wanted", [["query"], ["value"], ["key", "0.relative_values"], ["0.relative_keys"]])
def test_some_gradients_alone(wanted: list[str], device: str, rng: np.random.Generator) -> None:
    subject = subject_of("shaw", device, rng)
    arrays = [subject.arrays[name] for name in wanted]
    with one_order(device):
        whole = torch.autograd.grad(subject.run("triton")[0].sum(), list(subject.arrays.values()))
        expected = [gradient for name, gradient in zip(subject.arrays, whole, strict=True) if name in wanted]
        for name, array in subject.arrays.items():
            array.requires_grad_(name in wanted)
        found = torch.autograd.grad(subject.run("triton")[0].sum(), arrays)
    assert all(torch.equal(a, b) for a, b in zip(found, expected, strict=True))


@everywhere
@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode])
def test_without_gradients(mode: Any, device: str, rng: np.random.Generator) -> None:
    subject = subject_of(EVERY_TABLE, device, rng)
    with mode():
        answers = subject.run("triton")
    assert not any(answer.requires_grad for answer in answers)
    assert all(torch.equal(a, b) for a, b in zip(answers, subject.run("triton"), strict=True))


# --- dropout

P, LENGTH, SIGMAS = 0.3, 20, 6.5


def dropping(device: str, rng: np.random.Generator, name: str = "relative_per_head") -> Subject:
    """With the identity for values the output is the dropped weights themselves."""
    subject = subject_of(name, device, rng, query_length=LENGTH, key_length=LENGTH, value_dim=LENGTH, is_causal=False)
    with torch.no_grad():
        subject.arrays["value"].copy_(torch.eye(LENGTH))
        for array in (subject.arrays["query"], subject.arrays["key"]):
            array.mul_(0.3)  # no weight so small that it looks like a dropped one
    return subject


def drop(subject: Subject, seed: int, p: float = P) -> tuple[Tensor, Tensor]:
    seeds.start_torch(seed)
    return attention_and_lse(**subject.arguments(), backend="triton", dropout_p=p)


@everywhere
def test_weights_drop_independently(device: str, rng: np.random.Generator) -> None:
    subject = dropping(device, rng)
    dropped, lse = drop(subject, seed=1)
    kept = dropped != 0
    torch.testing.assert_close(dropped, attention_weights(**subject.arguments()) * kept / (1.0 - P), **CLOSE)
    assert torch.equal(lse, drop(subject, seed=1, p=0.0)[1]), "lse is that without dropout"

    def assert_share(hits: Tensor, expected: float) -> None:
        spread = SIGMAS * math.sqrt(expected * (1.0 - expected) / hits.numel())
        assert abs(hits.double().mean().item() - expected) < spread

    alike = P**2 + (1.0 - P) ** 2
    assert_share(~kept, P)
    for axis in range(4):  # batch elements, heads, queries, keys
        length = kept.shape[axis]
        assert_share(kept.narrow(axis, 1, length - 1) == kept.narrow(axis, 0, length - 1), alike)


@everywhere
def test_dropout_follows_the_generator(device: str, rng: np.random.Generator) -> None:
    subject = dropping(device, rng)
    first, _ = drop(subject, seed=3)
    following = relative_attention(**subject.arguments(), backend="triton", dropout_p=P)
    assert torch.equal(first, drop(subject, seed=3)[0])
    assert not torch.equal(first, drop(subject, seed=4)[0])
    assert not torch.equal(first, following), "the second call must not repeat the first one's mask"


@everywhere
def test_the_gradient_belongs_to_the_dropped_weights(device: str, rng: np.random.Generator) -> None:
    """By the dense formula with the factors that the kernels were seen to draw, every gradient."""
    subject = dropping(device, rng)
    arrays = list(subject.arrays.values())
    with torch.no_grad():
        factors = (drop(subject, seed=5)[0] != 0) / (1.0 - P)
    weights = attention_weights(**subject.arguments())
    values = subject.arrays["value"].repeat_interleave(2, dim=1)
    expected = gradients(((weights * factors) @ values,), arrays)
    found = gradients((drop(subject, seed=5)[0],), arrays)
    for ours, theirs in zip(found, expected, strict=True):
        torch.testing.assert_close(ours, theirs, **CLOSE)


@everywhere
def test_everything_dropped_is_zero_with_zero_gradients(device: str, rng: np.random.Generator) -> None:
    subject = dropping(device, rng)
    output, _ = drop(subject, seed=0, p=1.0)
    found = torch.autograd.grad(output.sum(), list(subject.arrays.values()), materialize_grads=True)
    assert not output.any()
    assert not any(gradient.any() for gradient in found)
