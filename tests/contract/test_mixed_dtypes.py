"""Half-precision inputs beside float32 parameters, by hand and by autocast: scores and sums stay float32."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from relattn import attention_and_lse, relative_attention
from tests.contract.cases import BACKEND_ANSWERS, CASES, runnable_pairs
from tests.contract.check import accumulation_eps, check, numpy_of, sum_lengths
from tests.contract.plain import magnitudes, plain_attention
from tests.contract.settings import random_setting
from tests.contract.subject import INPUTS, Subject, make_subject
from tests.oracle import assert_within_budget, max_error

pytestmark = pytest.mark.one_in(8)

pytest_plugins = ["tests.contract.fresh"]


def some_subject(name: str, backend: str, dtype: str, rng: np.random.Generator) -> tuple[Subject, bool]:
    """A call with a float32 encoding that the backend runs, and whether to ask for lse."""
    kind = "bare" if backend in BACKEND_ANSWERS else "any"
    setting = random_setting(rng, **CASES[name].requirements(), kind=kind)
    if kind == "bare":  # a mask of another dtype than the inputs' is more than the bare backends take
        setting = replace(setting, attn_mask=None)
    return make_subject(CASES[name], setting, dtype, "float32"), kind == "any"


@pytest.mark.parametrize(("name", "backend"), runnable_pairs(), indirect=["backend"])
def test_half_inputs_with_float32_parameters(name: str, backend: str, rng: np.random.Generator) -> None:
    dtype = str(rng.choice(["bfloat16", "float16"]))
    subject, return_lse = some_subject(name, backend, dtype, rng)
    check(subject, backend, dtype, return_lse=return_lse)


# A rotation rounds queries and keys to their own dtype before they meet.
UNROTATED = [(n, b) for n, b in runnable_pairs() if b not in BACKEND_ANSWERS and not n.startswith("rope")]


@pytest.mark.parametrize(("name", "backend"), UNROTATED, indirect=["backend"])
def test_scores_of_half_inputs_are_float32(name: str, backend: str, rng: np.random.Generator) -> None:
    """The log-sum-exp of bfloat16 inputs is as exact as float32 sums are, 2^16 times finer than bfloat16."""
    subject, _ = some_subject(name, backend, "bfloat16", rng)
    _, lse = subject.run(backend)
    answer = subject.oracle(subject.numbers())
    plain_error = max_error(numpy_of(plain_attention(subject, subject.arrays, torch.float32).lse), answer.lse)
    size = magnitudes(subject, answer, accumulation_eps("float32"), None)["lse"]
    assert lse.dtype == torch.float32
    assert_within_budget(
        numpy_of(lse), answer.lse, plain_error, sum_lengths(subject)["lse"], "float32", "lse", magnitude=size
    )


@pytest.mark.pairs
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize(("name", "backend"), runnable_pairs(), indirect=["backend"])
def test_autocast_is_the_call_with_half_inputs(
    name: str, backend: str, dtype: torch.dtype, rng: np.random.Generator
) -> None:
    subject, return_lse = some_subject(name, backend, "float32", rng)
    with torch.autocast("cpu", dtype=dtype):
        cast = subject.run(backend, return_lse)
    halves = {name: subject.arrays[name].to(dtype) for name in INPUTS}
    attend = attention_and_lse if return_lse else relative_attention
    by_hand = attend(**{**subject.arguments(), **halves}, backend=backend)
    for ours, expected in zip(cast, by_hand, strict=True) if return_lse else [(cast, by_hand)]:
        assert ours.dtype == expected.dtype
        assert torch.equal(ours, expected)
    arrays = list(subject.arrays.values())
    gradients = [
        torch.autograd.grad(result[0].sum() if return_lse else result.sum(), arrays, allow_unused=True)
        for result in (cast, by_hand)
    ]
    for ours, expected in zip(*gradients, strict=True):
        assert ours is expected is None or (ours.dtype == torch.float32 and torch.equal(ours, expected))
