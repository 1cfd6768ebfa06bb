"""Decoding through KVCache, token by token and in chunks of any sizes: the numbers of one full pass, every encoding."""

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from relattn import RelativeEncoding, relative_attention
from relattn.nn import KVCache, RelativeMultiheadAttention
from tests.contract.calls import MODULES, assert_equal, chunk_sizes, gradients, self_attention
from tests.contract.cases import CASES, TIED_TO_THE_LENGTH

pytestmark = pytest.mark.one_in(6)

pytest_plugins = ["tests.contract.fresh"]

every_module = pytest.mark.parametrize("name", [name for name in MODULES if name not in TIED_TO_THE_LENGTH])


def module_of(name: str, rng: np.random.Generator, length: int, backend: str = "dense") -> RelativeMultiheadAttention:
    """A layer with the case's encoding, random everywhere, of float64."""
    subject = self_attention(name, rng, length=length)
    encoding = subject.encoding()
    assert isinstance(encoding, RelativeEncoding)
    heads, kv_heads = subject.setting.num_heads, subject.setting.num_kv_heads
    layer = RelativeMultiheadAttention(
        5, heads, encoding, num_kv_heads=kv_heads, head_dim=subject.setting.head_dim, backend=backend
    )
    return layer.double()


def decode(layer: RelativeMultiheadAttention, x: Tensor, sizes: list[int], cache: KVCache, **keywords: Any) -> Tensor:
    """The layer over x in chunks, through the cache."""
    pieces, first = [], cache.next_position
    for size in sizes:
        start = cache.next_position - first
        chunk = x[:, start : start + size]
        masks = {name: mask[:, : first + start + size] for name, mask in keywords.items()}
        pieces.append(layer(chunk, is_causal=True, cache=cache, **masks))
    return torch.cat(pieces, dim=1)


@every_module
@pytest.mark.parametrize("grad", [True, False])
def test_decoding_through_the_cache_is_the_full_pass(name: str, grad: bool, rng: np.random.Generator) -> None:
    """With gradients recorded, and without, when rows of projected sinusoids are kept."""
    layer = module_of(name, rng, length=12)
    x = torch.randn(2, 12, 5, dtype=torch.float64, requires_grad=grad)
    with torch.set_grad_enabled(grad):
        whole = layer(x, is_causal=True)
        for sizes in ([12], [1] * 12, [5, 4, 3], chunk_sizes(rng, 12)):
            cache = KVCache()
            chunked = decode(layer, x, sizes, cache)
            assert_equal(chunked, whole)
            assert (cache.length, cache.first_position, cache.next_position) == (12, 0, 12)
    if grad:
        leaves = [x, *layer.parameters()]
        assert_equal(gradients((chunked,), leaves), gradients((whole,), leaves))


@every_module
def test_a_rolling_cache_is_a_window(name: str, rng: np.random.Generator) -> None:
    layer = module_of(name, rng, length=14)
    x = torch.randn(2, 14, 5, dtype=torch.float64)
    with torch.no_grad():
        for max_length, sizes in [
            (1, [1] * 14), (4, [14]), (4, [6, 1, 7]), (4, chunk_sizes(rng, 14)), (14, [13, 1]),
            (20, chunk_sizes(rng, 14)),
        ]:  # fmt: skip
            cache = KVCache(max_length)
            whole = layer(x, is_causal=True, window=(max_length - 1, 0))
            assert_equal(decode(layer, x, sizes, cache), whole)
            assert cache.next_position == 14
            assert cache.length <= max_length - 1 + sizes[-1]


@every_module
def test_padded_prompts_through_a_cache(name: str, rng: np.random.Generator) -> None:
    """A left-padded batch decoded in chunks equals each of its sequences alone."""
    layer = module_of(name, rng, length=12)
    x, pads = torch.randn(2, 12, 5, dtype=torch.float64), [4, 0]
    keep = torch.arange(12) >= torch.tensor(pads).unsqueeze(1)
    with torch.no_grad():
        for max_length in (None, 5):
            chunked = decode(layer, x, chunk_sizes(rng, 12), KVCache(max_length), key_mask=keep)
            window = None if max_length is None else (max_length - 1, 0)
            for row, pad in enumerate(pads):
                alone = layer(x[row : row + 1, pad:], is_causal=True, window=window)
                assert_equal(chunked[row : row + 1, pad:], alone)


@every_module
def test_a_truncated_cache_forgets(name: str, rng: np.random.Generator) -> None:
    """Cut back to the prompt and continued otherwise: as if the first continuation had never been."""
    layer = module_of(name, rng, length=12)
    prompt, wrong, right = (torch.randn(2, n, 5, dtype=torch.float64) for n in (5, 4, 6))
    with torch.no_grad():
        expected = layer(torch.cat([prompt, right], dim=1), is_causal=True)[:, 5:]
        cache = KVCache()
        decode(layer, prompt, [5], cache)
        decode(layer, wrong, [2, 2], cache)
        cache.truncate(5)
        assert (cache.length, cache.next_position) == (5, 5)
        assert_equal(decode(layer, right, [1, 5], cache), expected)


@every_module
def test_a_truncated_rolling_cache_keeps_its_positions(name: str, rng: np.random.Generator) -> None:
    """After rolling, the next position is not the length; cut by one, a token is decoded again."""
    layer = module_of(name, rng, length=12)
    x = torch.randn(1, 12, 5, dtype=torch.float64)
    with torch.no_grad():
        whole = layer(x, is_causal=True, window=(3, 0))
        cache = KVCache(4)
        decode(layer, x[:, :8], [8], cache)
        cache.truncate(7)
        assert_equal(decode(layer, x[:, 7:], [1, 4], cache), whole[:, 7:])


@every_module
def test_a_reordered_cache_follows_its_beams(name: str, rng: np.random.Generator) -> None:
    """Beams copied, swapped and dropped, then continued: each equals a full pass over its own history."""
    layer = module_of(name, rng, length=9)
    prompt, rest = torch.randn(3, 5, 5, dtype=torch.float64), torch.randn(4, 4, 5, dtype=torch.float64)
    index = torch.tensor([2, 0, 0, 1], dtype=torch.int32)
    with torch.no_grad():
        cache = KVCache()
        decode(layer, prompt, [3, 2], cache)
        cache.reorder(index)
        continued = decode(layer, rest, [1, 3], cache)
        whole = layer(torch.cat([prompt[index.long()], rest], dim=1), is_causal=True)
    assert_equal(continued, whole[:, 5:])


@every_module
@pytest.mark.parametrize("max_length", [None, 4])
def test_a_cache_through_a_life_of_changes(name: str, max_length: int | None, rng: np.random.Generator) -> None:
    """Appended to, cut, reordered, grown and shrunk at random: always what its history gives in one full pass."""
    changes = ["append", "append", *rng.permutation(["append", "append", "truncate", "reorder"] * 2)]
    longest = 3  # of a chunk; the tables reach as far as a history of such chunks alone
    layer = module_of(name, rng, length=longest * changes.count("append"))
    window = None if max_length is None else (max_length - 1, 0)
    cache, history = KVCache(max_length), torch.zeros(2, 0, 5, dtype=torch.float64)
    with torch.no_grad():
        for change in changes:
            if change == "append":
                chunk = torch.randn(len(history), int(rng.integers(1, longest + 1)), 5, dtype=torch.float64)
                history = torch.cat([history, chunk], dim=1)
                whole = layer(history, is_causal=True, window=window)
                assert_equal(layer(chunk, is_causal=True, cache=cache), whole[:, -chunk.shape[1] :])
            elif change == "truncate":
                first = cache.first_position
                least = first + 3 if first and max_length else first  # a window of 4, where it has rolled
                length = int(rng.integers(min(least, cache.next_position), cache.next_position + 1))
                cache.truncate(length)
                history = history[:, :length]
            else:
                index = torch.from_numpy(rng.integers(len(history), size=int(rng.integers(1, 5))))
                cache.reorder(index)
                history = history[index]
            assert cache.next_position == history.shape[1]


@every_module
def test_chunks_with_a_limited_left_context(name: str, rng: np.random.Generator) -> None:
    """Streaming: a chunk sees all of itself and as many slots before it as `forget` leaves."""
    layer, left, sizes = module_of(name, rng, length=12), 3, chunk_sizes(rng, 12)
    causal = bool(CASES[name].requirements()["is_causal"])
    x, cache, pieces, start = torch.randn(2, 12, 5, dtype=torch.float64), KVCache(), [], 0
    allowed = torch.zeros(12, 12, dtype=torch.bool)
    with torch.no_grad():
        for size in sizes:
            allowed[start : start + size, max(start - left, 0) : start + size] = True
            pieces.append(layer(x[:, start : start + size], is_causal=causal, cache=cache))
            start += size
            cache.forget(max(start - left, 0))
            assert (cache.first_position, cache.next_position) == (max(start - left, 0), start)
        assert_equal(torch.cat(pieces, dim=1), layer(x, is_causal=causal, attn_mask=allowed))


@every_module
@pytest.mark.parametrize("max_length", [None, 4])
def test_segments_trained_on_a_detached_memory(name: str, max_length: int | None, rng: np.random.Generator) -> None:
    """Two segments: the second's gradients are those of attention over keys and values of the first held constant."""
    layer = module_of(name, rng, length=10)
    first, second = (torch.randn(2, 5, 5, dtype=torch.float64, requires_grad=True) for _ in range(2))
    cache, leaves = KVCache(max_length), [first, second, *layer.parameters()]
    layer(first, is_causal=True, cache=cache)
    cache.detach()
    ours = layer(second, is_causal=True, cache=cache)

    def heads(projection: torch.nn.Linear, x: Tensor) -> Tensor:
        return projection(x).unflatten(-1, (-1, layer.head_dim)).transpose(1, 2)

    k, v = (
        torch.cat([heads(projection, first).detach(), heads(projection, second)], dim=2)
        for projection in (layer.k_proj, layer.v_proj)
    )
    window = None if max_length is None else (max_length - 1, 0)
    attended = relative_attention(
        heads(layer.q_proj, second), k, v, is_causal=True, window=window, encoding=layer.encoding, query_position=5,
        enable_gqa=True, backend="dense",
    )  # fmt: skip
    expected = layer.out_proj(attended.transpose(1, 2).flatten(2))
    assert_equal(ours, expected)
    assert_equal(gradients((ours,), leaves), gradients((expected,), leaves))
    assert not gradients((ours,), [first])[0].any()
