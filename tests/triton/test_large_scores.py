"""Scores so large that neighbouring floats are far apart, 0.002 at 3 * 10^4 and 1 at 10^7: both passes take the same
weights.
"""

from collections.abc import Callable
from typing import Any

import pytest
import torch

from relattn import KeyQueryEmbedding, RelativeEmbedding, T5Bias, relative_attention
from tests.triton import INTERPRETED

HEADS, WIDTH, KEYS, LONGEST = 2, 16, 40, 64
ROUNDINGS = 8 * 2.0**-23
"""Of a weight, at most 1: the power, the quotient, and the products and sums with zeros and ones."""
SEEN = 4.0
"""How far apart the scores of a row are, about, so that several keys have a weight."""
TERMS: dict[str, Callable[[int], dict[str, Any]]] = {
    "none": lambda _: {},
    "relative": lambda _: {"encoding": RelativeEmbedding(WIDTH, LONGEST), "is_causal": True},
    "key and query": lambda _: {"encoding": KeyQueryEmbedding(WIDTH, LONGEST)},
    "bias": lambda _: {"encoding": T5Bias(HEADS)},
    "explicit": lambda queries: {
        "encoding": RelativeEmbedding(WIDTH, LONGEST),
        "query_position": torch.randperm(queries),
        "key_position": torch.randperm(KEYS),
    },
    "key bias": lambda _: {"key_bias": torch.randn(1, HEADS, KEYS)},
    "float mask": lambda queries: {"attn_mask": torch.randn(queries, KEYS)},
}


@pytest.mark.parametrize("device", [INTERPRETED])
@pytest.mark.parametrize("name", TERMS)
@pytest.mark.parametrize("size", [3e4, 1e7])
def test_both_passes_take_the_same_weights(size: float, name: str, device: str) -> None:
    """For few queries and for many. Of values that are the rows of a unit matrix the answers are the weights, and so
    are their gradients for such a dO.
    """
    for queries in (2, 20):
        query = torch.full((1, HEADS, queries, WIDTH), size) * (1 + torch.rand(1, HEADS, queries, 1))
        key = 1 + SEEN / size * torch.randn(1, HEADS, KEYS, WIDTH)
        unit = torch.eye(KEYS).expand(1, HEADS, KEYS, KEYS)
        value = unit.clone().requires_grad_()
        weights = relative_attention(query, key, value, scale=1 / WIDTH, backend="triton", **TERMS[name](queries))
        (again,) = torch.autograd.grad(weights, value, unit[:, :, :queries])
        assert (weights.detach() - again[..., :queries].mT).abs().max() <= ROUNDINGS, queries
