"""Scores so large that a rounding of one moves its weight: both passes must find the same scores, to the last bit.

At 10^7 neighbouring float32 numbers are 1 apart, so a score that is rounded in another way has e times the weight, or
1 / e of it. The gradient by the values shows the weights of the backward pass: with ones for dO, a key's is the sum of
its weights.
"""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from relattn import (
    KeyQueryEmbedding,
    RelativeEmbedding,
    RelativeEncoding,
    RotaryEmbedding,
    ShawEmbedding,
    T5Bias,
    relative_attention,
)
from tests.native.sets import every_set

pytestmark = pytest.mark.pairs

LARGE = 1e7
HEADS, WIDTH, LONGEST = 2, 32, 2048


def large(encoding: RelativeEncoding) -> RelativeEncoding:
    """With rows of large numbers, so that products with them are rounded as coarsely as those with the keys."""
    with torch.no_grad():
        for parameter in encoding.parameters():
            parameter.normal_().mul_(LARGE if isinstance(encoding, T5Bias) else 1.0)
    return encoding


def explicit(queries: int, keys: int) -> dict[str, Tensor]:
    """In no order: the pairs of a tile look up rows all over a table."""
    return {"query_position": torch.randperm(queries), "key_position": torch.randperm(keys)}


def of_axis(queries: int, keys: int) -> dict[str, Any]:
    """The same on another axis, beside a window over the sequence that begins and ends within blocks."""
    x = explicit(queries, keys)
    of_query = {"sequence": keys - queries, "x": x["query_position"]}
    return {"query_position": of_query, "key_position": {"x": x["key_position"]}, "is_causal": True, "window": (290, 0)}


TERMS: dict[str, Callable[[int, int], dict[str, Any]]] = {
    "none": lambda _, __: {},
    "rotary": lambda _, __: {"encoding": RotaryEmbedding(WIDTH)},
    "relative": lambda _, keys: {"encoding": large(RelativeEmbedding(WIDTH, keys)), "is_causal": True},
    "shaw": lambda _, __: {"encoding": large(ShawEmbedding(WIDTH, 16, num_heads=HEADS))},
    "key query": lambda _, __: {"encoding": large(KeyQueryEmbedding(WIDTH, LONGEST))},
    "bias": lambda _, __: {"encoding": large(T5Bias(HEADS))},
    "relative, explicit": lambda *n: {"encoding": large(RelativeEmbedding(WIDTH, LONGEST)), **explicit(*n)},
    "key query, explicit": lambda *n: {"encoding": large(KeyQueryEmbedding(WIDTH, LONGEST)), **explicit(*n)},
    "relative, of an axis": lambda *n: {"encoding": large(RelativeEmbedding(WIDTH, LONGEST)).on("x"), **of_axis(*n)},
    "key query, of an axis": lambda *n: {"encoding": large(KeyQueryEmbedding(WIDTH, LONGEST)).on("x"), **of_axis(*n)},
    "key bias": lambda _, keys: {"key_bias": LARGE * torch.randn(1, HEADS, keys)},
    "cap": lambda _, __: {"softcap": LARGE},
    "float mask": lambda *n: {"attn_mask": LARGE * torch.randn(*n)},
}


@pytest.mark.one_in(4)
@every_set
@pytest.mark.parametrize("name", TERMS)
def test_the_weights_of_the_backward_pass_sum_to_one(name: str, instructions: str) -> None:
    """For few queries, for grouped heads, and for many across blocks; in each dtype that kernels read as it lies.

    Each weight is a few roundings of float32 off, and so is a sum of `keys` of them, for each of which one more is
    owed. A half precision rounds a weight, and a gradient: each by half an eps at most.
    """
    for queries, keys, shared, dtype in (
        (1, 300, 1, torch.float32), (3, 600, 2, torch.bfloat16), (8, 600, 1, torch.float32), (2, 30, 1, torch.float16),
        (9, 40, 1, torch.float32), (200, 600, 2, torch.float32),
    ):  # fmt: skip
        size = LARGE if dtype != torch.float16 else 1e4
        query = (size * torch.randn(1, HEADS, queries, WIDTH)).to(dtype).requires_grad_()
        key, value = (torch.randn(1, HEADS // shared, keys, WIDTH, dtype=dtype) for _ in range(2))
        value.requires_grad_()
        output = relative_attention(query, key, value, backend="native", enable_gqa=True, **TERMS[name](queries, keys))
        (weights,) = torch.autograd.grad(output[..., 0].sum(), value)
        rounding = (keys + 8) * 2.0**-23 + (0.0 if dtype == torch.float32 else torch.finfo(dtype).eps)
        found = weights[..., 0].double().sum().item()
        assert abs(found - HEADS * queries) <= rounding * HEADS * queries, (queries, keys, dtype)
