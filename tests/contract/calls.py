"""Calls, gradients and comparisons for tests that hold two ways of computing one thing against each other.

Both ways are computed in float64. They sum the same few dozen terms of size 1 to 10 in another order, so they differ by
some 1e-14; a position, sign or mask gone wrong differs by 1e-3 and more. EXACT lies between.
"""

from typing import Any

import numpy as np
import torch
from torch import Tensor

from relattn import attention_and_lse
from tests.contract.cases import CASES, EncodingCase
from tests.contract.settings import Setting
from tests.contract.subject import Subject, make_subject

EXACT = {"rtol": 1e-10, "atol": 1e-10}
MODULES = [name for name, case in CASES.items() if isinstance(case, EncodingCase) and name != "none"]


def self_attention(name: str, rng: np.random.Generator, length: int = 11, batch: int = 2) -> Subject:
    """Self-attention over `length` positions with grouped heads where the head count has a divisor."""
    needs = CASES[name].requirements()
    heads = needs.get("num_heads") or 4
    seed = int(rng.integers(2**32))
    kv_heads = heads // 2 if heads % 2 == 0 else heads
    causal = bool(needs.get("is_causal"))
    return make_subject(CASES[name], Setting(batch, heads, kv_heads, length, length, 4, 4, is_causal=causal, seed=seed))


def attend(subject: Subject, backend: str = "dense", **changes: Any) -> tuple[Tensor, Tensor]:
    """(output, lse) of the call with some arguments changed."""
    return attention_and_lse(**{**subject.arguments(), **changes}, backend=backend)


def assert_equal(ours: Any, expected: Any, **tolerance: float) -> None:
    torch.testing.assert_close(ours, expected, **(tolerance or EXACT))


def gradients(answers: tuple[Tensor, ...], arrays: list[Tensor]) -> tuple[Tensor, ...]:
    """Of a fixed sum of the answers, with no part for an lse of -inf."""
    weights = [torch.arange(a.numel(), dtype=a.dtype, device=a.device).reshape(a.shape).cos() for a in answers]
    return torch.autograd.grad(answers, arrays, weights, allow_unused=True, materialize_grads=True)


def chunk_sizes(rng: np.random.Generator, length: int) -> list[int]:
    """Random sizes that add up to `length`, tokens by themselves among them."""
    sizes = [1]
    while sum(sizes) < length:
        sizes.append(min(int(rng.integers(1, 5)), length - sum(sizes)))
    return [int(size) for size in rng.permutation(sizes)]
