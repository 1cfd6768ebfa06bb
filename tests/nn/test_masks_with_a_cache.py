"""Masks through a cache cover every slot so far, and the answers are those of one pass; so are they under autocast."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from relattn import RelativeEncoding, ScoreTerms, ShawEmbedding
from relattn.nn import KVCache, RelativeMultiheadAttention

LENGTH, SIZES = 12, [5, 1, 2, 4]
PADDED = torch.arange(LENGTH) >= torch.tensor([[3], [0]])
PACKED = torch.tensor([[0] * 5 + [1] * 7, [0] * 2 + [1] * 5 + [2] * 5])
EITHER = [None, 4, LENGTH]


def layer_and_input() -> tuple[RelativeMultiheadAttention, Tensor]:
    layer = RelativeMultiheadAttention(16, 4, ShawEmbedding(4, 3)).double()
    nn.init.normal_(layer.encoding.relative_keys)
    return layer, torch.randn(2, LENGTH, 16, dtype=torch.float64)


def assert_chunks_are_one_pass(max_length: int | None, whole: dict, part: Callable[[slice], dict]) -> None:
    """`whole`: the masks of one pass; part(new slots): those of a chunk, over every slot so far."""
    layer, x = layer_and_input()
    window = None if max_length is None else (max_length - 1, 0)
    with torch.no_grad():
        expected = layer(x, is_causal=True, window=window, **whole)
        unmasked = layer(x, is_causal=True, window=window)
        cache, pieces, start = KVCache(max_length), [], 0
        for size in SIZES:
            new = slice(start, start + size)
            pieces.append(layer(x[:, new], is_causal=True, cache=cache, **part(new)))
            start += size
    torch.testing.assert_close(torch.cat(pieces, dim=1), expected, rtol=1e-10, atol=1e-10)
    assert not torch.allclose(expected, unmasked), "the mask does nothing"


@pytest.mark.parametrize("max_length", EITHER)
def test_key_masks(max_length: int | None) -> None:
    assert_chunks_are_one_pass(max_length, {"key_mask": PADDED}, lambda new: {"key_mask": PADDED[:, : new.stop]})


@pytest.mark.parametrize("max_length", EITHER)
def test_segments_in_one_tensor(max_length: int | None) -> None:
    """Kept like a key mask: one tensor, appended to; the queries' are its last."""
    assert_chunks_are_one_pass(max_length, {"segment_ids": PACKED}, lambda new: {"segment_ids": PACKED[:, : new.stop]})


@pytest.mark.parametrize("max_length", EITHER)
def test_segments_in_a_pair(max_length: int | None) -> None:
    """The second of every slot so far; the queries' may be others than their keys'."""
    queries = PACKED.roll(1, dims=1)
    assert_chunks_are_one_pass(
        max_length,
        {"segment_ids": (queries, PACKED)},
        lambda new: {"segment_ids": (queries[:, new], PACKED[:, : new.stop])},
    )


@pytest.mark.one_in(3)
@pytest.mark.parametrize("max_length", EITHER)
@pytest.mark.parametrize("size", [(2, 4, LENGTH, LENGTH), (LENGTH, LENGTH), (2, 1, LENGTH, 1), (LENGTH,)], ids=str)
@pytest.mark.parametrize("dtype", [torch.bool, torch.float64], ids=str)
def test_attention_masks(max_length: int | None, size: tuple[int, ...], dtype: torch.dtype) -> None:
    mask = torch.rand(size) < 0.7 if dtype == torch.bool else torch.randn(size, dtype=dtype)
    if dtype != torch.bool and size[-1] == 1:
        mask = mask.masked_fill(mask < 0, -torch.inf)  # one number for all keys matters only where it drops them
    one = (..., 5, min(5, size[-1] - 1))[-mask.dim() :]  # a pair that is visible without the mask, whatever is drawn
    mask[one] = False if dtype == torch.bool else -torch.inf

    def part(new: slice) -> dict:
        rows = mask[..., new, :] if mask.dim() > 1 else mask
        return {"attn_mask": rows[..., : new.stop]}

    assert_chunks_are_one_pass(max_length, {"attn_mask": mask}, part)


@pytest.mark.parametrize("max_length", EITHER)
@pytest.mark.parametrize("size", [(2, 4, LENGTH), (1, 4, LENGTH), (2, 1, LENGTH)], ids=str)
def test_key_biases_caps_and_sinks(max_length: int | None, size: tuple[int, ...]) -> None:
    """A key bias covers every slot so far; sinks, those of the new queries."""
    key_bias, sinks = torch.randn(size, dtype=torch.float64).cumsum(-1), torch.randn(2, 4, LENGTH, dtype=torch.float64)
    assert_chunks_are_one_pass(
        max_length,
        {"key_bias": key_bias, "sinks": sinks, "softcap": 2.0},
        lambda new: {"key_bias": key_bias[..., : new.stop], "sinks": sinks[..., new], "softcap": 2.0},
    )


def test_a_key_bias_over_a_memory() -> None:
    layer, x = layer_and_input()
    key_bias, sinks = torch.randn(2, 4, LENGTH, dtype=torch.float64), torch.randn(4, dtype=torch.float64)
    with torch.no_grad():
        expected = layer(x[:, :3], x, key_bias=key_bias, sinks=sinks)
        found = layer(x[:, :3], cache=layer.remember(x), key_bias=key_bias, sinks=sinks)
    torch.testing.assert_close(found, expected, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("window", [None, (3, None), (3, 0), (None, 0)])
def test_a_rolling_cache_is_causal_whatever_is_causal_says(window: tuple | None) -> None:
    layer, x = layer_and_input()
    with torch.no_grad():
        expected = layer(x, is_causal=True, window=(3, 0))
        torch.testing.assert_close(layer(x, window=window, cache=KVCache(4)), expected, rtol=1e-10, atol=1e-10)
        together = layer(x, is_causal=True, window=(3, 2), cache=KVCache(4))  # nothing ahead was asked for
        torch.testing.assert_close(together, expected, rtol=1e-10, atol=1e-10)


class Mixed(RelativeEncoding):
    """Keys times a matrix of float32, which autocast would narrow."""

    def __init__(self) -> None:
        super().__init__()
        self.matrix = nn.Parameter(torch.randn(4, 4))

    def prepare_keys(self, key, key_position):
        return (key.float() @ self.matrix).to(key.dtype)

    def terms(self, query, key, positions):
        return ScoreTerms()


def test_keys_are_prepared_in_the_encoding_s_dtype_under_autocast() -> None:
    """With a cache, of a memory, and without one: bit by bit the same."""
    layer, x = RelativeMultiheadAttention(16, 4, Mixed()), torch.randn(2, LENGTH, 16)
    with torch.no_grad(), torch.autocast("cpu", dtype=torch.bfloat16):
        whole = layer(x)
        assert torch.equal(layer(x, cache=KVCache()), whole)
        assert torch.equal(layer(x, cache=layer.remember(x)), whole)
