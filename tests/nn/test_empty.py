"""Layers and caches of no batch element, no new token, or an empty memory."""

import pytest
import torch

import relattn
from relattn.nn import KVCache, RelativeMultiheadAttention

WIDTH, LENGTH = 16, 5
ENCODINGS = {
    "none": lambda: None,
    "shaw": lambda: relattn.ShawEmbedding(8, 2),
    "txl": lambda: relattn.TransformerXLEmbedding(2, 8),
    "rope+t5": lambda: relattn.RotaryEmbedding(8) + relattn.T5Bias(2),
    "key_query": lambda: relattn.KeyQueryEmbedding(8, 16),
}
CLOSE = {"rtol": 1e-12, "atol": 1e-12}
"""Five keys of one size in float64: the same sums, in another order."""


def layer_of(name: str, backend: str) -> RelativeMultiheadAttention:
    return RelativeMultiheadAttention(WIDTH, 2, ENCODINGS[name](), backend=backend).double()


def tokens(batch: int, length: int) -> torch.Tensor:
    return torch.randn(batch, length, WIDTH, dtype=torch.float64, requires_grad=True)


@pytest.mark.parametrize("name", ENCODINGS)
@pytest.mark.parametrize("backend", ["reference", "dense", "blocks"])
@pytest.mark.parametrize(("batch", "length"), [(0, LENGTH), (2, 0), (0, 0)])
def test_self_attention(batch: int, length: int, backend: str, name: str) -> None:
    layer, given = layer_of(name, backend), tokens(batch, length)
    output = layer(given, is_causal=True)
    assert output.shape == given.shape
    output.sum().backward()
    assert given.grad is not None
    assert not any(parameter.grad.any() for parameter in layer.parameters() if parameter.grad is not None)


@pytest.mark.parametrize("name", ENCODINGS)
@pytest.mark.parametrize("backend", ["reference", "dense", "blocks"])
def test_an_empty_memory(backend: str, name: str) -> None:
    """Every query sees nothing: its output is that of zeros."""
    layer, given, memory = layer_of(name, backend), tokens(2, LENGTH), tokens(2, 0)
    output = layer(given, memory)
    assert torch.equal(output, layer.out_proj.bias.expand_as(output))
    cache = layer.remember(memory)
    assert (cache.is_full, cache.length) == (True, 0)
    assert torch.equal(layer(given, cache=cache), output)
    output.sum().backward()
    assert given.grad is not None
    assert not given.grad.any()


@pytest.mark.pairs
@pytest.mark.parametrize("explicit", [False, True], ids=["in a row", "explicit"])
@pytest.mark.parametrize("max_length", [None, 3])
@pytest.mark.parametrize("name", ENCODINGS)
@pytest.mark.parametrize("backend", ["reference", "dense", "blocks"])
@pytest.mark.parametrize("batch", [0, 2])
@pytest.mark.parametrize("mode", [torch.enable_grad, torch.no_grad])
def test_a_cache(mode, batch: int, backend: str, name: str, max_length: int | None, explicit: bool) -> None:
    """Chunks of no token before, between and after the others change nothing."""
    layer, given, cache = layer_of(name, backend), tokens(batch, LENGTH), KVCache(max_length)
    with mode():
        expected = layer(given, is_causal=True, window=None if max_length is None else (max_length - 1, 0))
        found = []
        for first, end in ((0, 0), (0, 3), (3, 3), (3, LENGTH), (LENGTH, LENGTH)):
            position = torch.arange(first, end).expand(batch, -1) if explicit else None
            found.append(layer(given[:, first:end], is_causal=True, cache=cache, query_position=position))
            assert found[-1].shape == (batch, end - first, WIDTH)
            assert cache.next_position == end
    torch.testing.assert_close(torch.cat(found, dim=1), expected, **CLOSE)
