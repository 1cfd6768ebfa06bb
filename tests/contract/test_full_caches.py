"""A memory projected once: attention to a full cache is attention to the memory, for every encoding."""

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from relattn.nn import RelativeMultiheadAttention
from tests.contract.calls import assert_equal, gradients
from tests.contract.cases import CASES
from tests.contract.test_decoding import every_module, module_of

pytest_plugins = ["tests.contract.fresh"]

MEMORY, QUERIES = 6, 5
STARTS = {
    "default": 0,
    "start": 3,
    "start in a tensor": torch.tensor(3, dtype=torch.int8),
    "explicit": torch.tensor([0, 2, 3, 5, 6, 7]),
    "explicit per row": torch.tensor([[0, 1, 2, 3, 4, 5], [7, 5, 3, 2, 1, 0]], dtype=torch.int32),
}


def cross(
    layer: RelativeMultiheadAttention, name: str, rng: np.random.Generator, **positions: Any
) -> tuple[dict[str, Any], Tensor]:
    """Keywords of a call over the memory: limits by position, a mask; and the memory."""
    causal = bool(CASES[name].requirements()["is_causal"] or rng.integers(2))
    keep = torch.from_numpy(rng.random((2, MEMORY)) > 0.2)
    limits = {"is_causal": causal, "window": (5, 4), "key_mask": keep}
    return limits | positions, torch.randn(2, MEMORY, 5).double().requires_grad_()


@pytest.mark.one_in(3)
@every_module
def test_attention_to_a_full_cache(name: str, rng: np.random.Generator) -> None:
    """Token by token at their own positions, then in one chunk; the memory at positions of any kind."""
    layer, key_position = module_of(name, rng, length=14), STARTS[str(rng.choice(list(STARTS)))]
    keywords, memory = cross(layer, name, rng)
    query = torch.randn(2, QUERIES, 5).double()
    with torch.no_grad():
        expected = layer(query, memory, key_position=key_position, query_position=4, **keywords)
        cache = layer.remember(memory, key_position=key_position)
        assert (cache.is_full, cache.length) == (True, MEMORY)
        tokens = [
            layer(token, cache=cache, query_position=4 + t, **keywords) for t, token in enumerate(query.split(1, dim=1))
        ]
        assert_equal(torch.cat(tokens, dim=1), expected)
        explicit = 4 + torch.arange(QUERIES)
        assert_equal(layer(query, cache=cache, query_position=explicit, **keywords), expected)
        assert_equal(layer(query, cache=cache, **keywords), layer(query, memory, key_position=key_position, **keywords))
        assert cache.length == MEMORY


@pytest.mark.one_in(3)
@every_module
def test_beams_share_a_memory(name: str, rng: np.random.Generator) -> None:
    """A memory repeated for its beams, and beams that leave; each row has its own positions."""
    layer = module_of(name, rng, length=14)
    key_position = STARTS["explicit per row"]
    keywords, memory = cross(layer, name, rng, query_position=3)
    keep = keywords.pop("key_mask")
    with torch.no_grad():
        cache, rows = layer.remember(memory, key_position=key_position), torch.arange(2)
        for index in (torch.tensor([0, 0, 1, 1, 1]), torch.tensor([3, 0])):
            cache.reorder(index)
            rows = rows[index]
            query = torch.randn(len(rows), 1, 5).double()
            expected = layer(query, memory[rows], key_position=key_position[rows], key_mask=keep[rows], **keywords)
            assert_equal(layer(query, cache=cache, key_mask=keep[rows], **keywords), expected)


@pytest.mark.one_in(3)
@every_module
def test_gradients_through_a_full_cache(name: str, rng: np.random.Generator) -> None:
    """Two queries of one memory: its projections collect the gradients of both."""
    layer = module_of(name, rng, length=14)
    keywords, memory = cross(layer, name, rng)
    queries = [torch.randn(2, n, 5).double().requires_grad_() for n in (1, 3)]
    leaves = [memory, *queries, *layer.parameters()]
    cache = layer.remember(memory, key_position=1)
    ours = tuple(layer(q, cache=cache, query_position=4, **keywords) for q in queries)
    expected = tuple(layer(q, memory, key_position=1, query_position=4, **keywords) for q in queries)
    assert_equal(ours, expected)
    assert_equal(gradients(ours, leaves), gradients(expected, leaves))


def test_keys_and_values_apart() -> None:
    layer = RelativeMultiheadAttention(8, 2, kdim=3, vdim=4)
    query, key, value = torch.randn(2, 2, 8), torch.randn(2, 5, 3), torch.randn(2, 5, 4)
    assert_equal(layer(query, cache=layer.remember(key, value)), layer(query, key, value), rtol=1e-6, atol=1e-6)
