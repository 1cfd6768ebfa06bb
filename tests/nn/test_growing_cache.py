"""How a cache grows: what a token copies, and that writing in place is never seen by a graph, an undo or a copy."""

from __future__ import annotations

import copy
import io
import pickle

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from relattn import (
    AlibiBias,
    KerpleBias,
    RelativeEmbedding,
    RotaryEmbedding,
    SandwichBias,
    TransformerXLEmbedding,
)
from relattn.nn import KVCache, RelativeMultiheadAttention

BATCH, HEADS, WIDTH = 2, 2, 8
PER_TOKEN = BATCH * HEADS * WIDTH


def parts(*lengths: int) -> list[tuple[Tensor, Tensor]]:
    """Keys and values of so many tokens each."""
    return [(torch.randn(BATCH, HEADS, n, WIDTH), torch.randn(BATCH, HEADS, n, WIDTH)) for n in lengths]


def joined(pieces: list[tuple[Tensor, Tensor]]) -> tuple[Tensor, Tensor]:
    """What a cache that was given the pieces holds."""
    keys, values = zip(*pieces, strict=True)
    return torch.cat(keys, dim=2), torch.cat(values, dim=2)


def assert_holds(cache: KVCache, pieces: list[tuple[Tensor, Tensor]]) -> None:
    """Bit by bit."""
    for held, expected in zip((cache.keys, cache.values), joined(pieces), strict=True):
        assert held is not None and torch.equal(held, expected)


class Written(TorchDispatchMode):
    """Counts the elements that operations write; views write none."""

    def __init__(self) -> None:
        super().__init__()
        self.elements, self.largest = 0, 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        answer = func(*args, **(kwargs or {}))
        name = func.overloadpacket.__name__
        is_view = any(r.alias_info is not None and not r.alias_info.is_write for r in func._schema.returns)
        if not is_view and not name.startswith(("empty", "new_empty")):
            outputs = answer if isinstance(answer, tuple | list) else [answer]
            for output in outputs:
                if isinstance(output, Tensor):
                    self.elements += output.numel()
                    self.largest = max(self.largest, output.numel())
        return answer


@pytest.mark.parametrize("max_length", [None, 40])
def test_tokens_are_written_once_and_moved_three_times_at_most(max_length: int | None) -> None:
    """On average: n + n / 1.5 + n / 1.5^2 + ... = 3 n. A copy of the whole cache a token would write 50 times that."""
    cache, tokens = KVCache(max_length), parts(*[1] * 400)
    with torch.no_grad(), Written() as written:
        for key, value in tokens:
            cache.append(key, value)
    assert written.elements <= 2 * PER_TOKEN * 400 * (1 + 3)


def test_the_room_is_half_as_much_again() -> None:
    """And a rolling cache's no more than that, however long it lives."""
    grows, rolls = KVCache(), KVCache(max_length=40)
    with torch.no_grad():
        for key, value in parts(*[1] * 400):
            grows.append(key, value)
            rolls.append(key, value)
            for cache, longest in ((grows, grows.length), (rolls, 40)):
                assert cache.keys.untyped_storage().nbytes() <= 4 * PER_TOKEN * (1.5 * longest + 1)


@pytest.mark.parametrize(
    "encoding",
    [
        RotaryEmbedding(WIDTH),
        TransformerXLEmbedding(HEADS, WIDTH),
        RelativeEmbedding(WIDTH, 600),
        AlibiBias(HEADS),
        KerpleBias(HEADS),
        SandwichBias(HEADS),
    ],
    ids=lambda encoding: type(encoding).__name__,
)
def test_a_token_copies_nothing_of_the_cache(encoding) -> None:
    """Nothing that a step writes is as large as the keys that it attends to, or as the rows of their offsets."""
    layer, cache = RelativeMultiheadAttention(HEADS * WIDTH, HEADS, encoding), KVCache()
    with torch.no_grad():
        with Written() as written:
            layer(torch.randn(BATCH, 500, HEADS * WIDTH), is_causal=True, cache=cache)
        assert written.largest >= 500 * PER_TOKEN, "the prompt moves into room of the cache's own"
        largest = []
        for _ in range(6):
            with Written() as written:
                layer(torch.randn(BATCH, 1, HEADS * WIDTH), is_causal=True, cache=cache)
            largest.append(written.largest)
    assert max(largest[1:]) < 500 * HEADS * WIDTH, largest  # the first moves rows that are kept, too


def test_beams_copy_what_is_held_and_no_more() -> None:
    cache, key, value = KVCache(), *parts(100)[0]
    with torch.no_grad():
        cache.append(key, value)
        for _ in range(3):
            with Written() as written:
                cache.reorder(torch.tensor([1, 0]))
                cache.append(*parts(1)[0])
            assert written.elements <= 2 * PER_TOKEN * (cache.length + 3) + 8


# --- graphs


def layer_and_chunks(*lengths: int) -> tuple[RelativeMultiheadAttention, list[Tensor]]:
    """A layer of float64, and inputs of so many tokens."""
    layer = RelativeMultiheadAttention(HEADS * WIDTH, HEADS, TransformerXLEmbedding(HEADS, WIDTH)).double()
    return layer, [torch.randn(BATCH, n, HEADS * WIDTH, dtype=torch.float64) for n in lengths]


MODES = {"no_grad": torch.no_grad, "inference": torch.inference_mode, "grad": torch.enable_grad}


@pytest.mark.one_in(4)
@pytest.mark.parametrize("first", MODES)
@pytest.mark.parametrize("second", MODES)
@pytest.mark.parametrize("third", MODES)
def test_chunks_in_any_mode_after_any_other(first: str, second: str, third: str) -> None:
    """Numbers, and gradients of the last chunk where it records them, are those of fresh tensors held constant."""
    layer, chunks = layer_and_chunks(3, 1, 1, 2)
    cache, kept = KVCache(), []
    for mode, chunk in zip((first, second, third), chunks, strict=False):
        with MODES[mode]():
            kept.append(layer(chunk, is_causal=True, cache=cache))
    last = layer(chunks[3], is_causal=True, cache=cache)
    with torch.no_grad():  # written behind what the graph of `last` has saved
        layer(chunks[1], is_causal=True, cache=cache)
    whole = layer(torch.cat(chunks, dim=1), is_causal=True)
    torch.testing.assert_close(torch.cat([*kept, last], dim=1), whole, rtol=1e-10, atol=1e-10)
    for ours, expected in zip(
        torch.autograd.grad(last.sum(), [layer.q_proj.weight, layer.out_proj.weight]),
        torch.autograd.grad(whole[:, 5:].sum(), [layer.q_proj.weight, layer.out_proj.weight]),
        strict=True,
    ):
        torch.testing.assert_close(ours, expected, rtol=1e-10, atol=1e-10)


def test_a_graph_over_frozen_keys_survives_the_next_tokens() -> None:
    """Only the queries are trained: the graph saves keys that require no gradient."""
    layer, chunks = layer_and_chunks(4, 1, 1, 1)
    layer.k_proj.requires_grad_(False)
    layer.v_proj.requires_grad_(False)
    cache = KVCache()
    with torch.no_grad():
        layer(chunks[0], is_causal=True, cache=cache)
        layer(chunks[1], is_causal=True, cache=cache)
    output = layer(chunks[2], is_causal=True, cache=cache)
    with torch.no_grad():
        cache.truncate(5)
        layer(chunks[3], is_causal=True, cache=cache)
    whole = layer(torch.cat(chunks[:3], dim=1), is_causal=True)[:, 5:]
    ours, expected = (torch.autograd.grad(o.sum(), layer.q_proj.weight)[0] for o in (output, whole))
    torch.testing.assert_close(ours, expected, rtol=1e-10, atol=1e-10)


def test_a_caller_s_buffer_may_be_filled_again() -> None:
    """From the first part on the cache holds copies."""
    cache, (key, value), pieces = KVCache(), parts(2)[0], parts(2, 2, 2)
    with torch.no_grad():
        for new_key, new_value in pieces:
            key.copy_(new_key)
            value.copy_(new_value)
            cache.append(key, value)
    assert_holds(cache, pieces)


def test_what_came_from_outside_is_never_written_to() -> None:
    """Cut and appended to: the first keys are the caller's own tensor, for a graph was recorded."""
    (key, value), other = parts(5)[0], parts(2)[0]
    before, cache = key.clone(), KVCache()
    cache.append(key, value)
    with torch.no_grad():
        cache.truncate(2)
        cache.append(*other)
    assert torch.equal(key, before)
    assert_holds(cache, [(key[:, :, :2], value[:, :, :2]), other])


def test_views_outlive_growing_and_rolling() -> None:
    """What `append` returned stays what it was, until the cache is cut and appended to."""
    cache, pieces = KVCache(max_length=4), parts(*[1] * 30)
    with torch.no_grad():
        seen = [cache.append(key, value) for key, value in pieces]
    for end, (keys, values) in enumerate(seen, start=1):
        expected = joined(pieces[max(end - 4, 0) : end])
        assert torch.equal(keys, expected[0]) and torch.equal(values, expected[1])


# --- undo, copies


@pytest.mark.parametrize("max_length", [None, 4])
def test_an_error_undoes_what_was_written_in_place(max_length: int | None) -> None:
    """At every fill of the room, so that moves and rolls are undone as well."""
    pieces = parts(*[1] * 12)
    with torch.no_grad():
        for count in range(1, 12):
            cache = KVCache(max_length)
            for key, value in pieces[:count]:
                cache.append(key, value)
            before = joined(pieces[max(count - 4, 0) if max_length else 0 : count])
            with pytest.raises(KeyError), cache.serving(cache, None):
                for key, value in parts(2, 1):
                    cache.append(key, value)
                raise KeyError
            assert cache.next_position == count
            assert torch.equal(cache.keys, before[0]) and torch.equal(cache.values, before[1])
            cache.append(*pieces[count])
            assert torch.equal(cache.keys[:, :, -1:], pieces[count][0])


def test_copies_carry_no_spare_room_and_live_apart() -> None:
    pieces = parts(*[1] * 21)
    cache, explicit = KVCache(), torch.arange(21).expand(BATCH, -1)
    with torch.no_grad():
        for place, (key, value) in enumerate(pieces[:20]):
            cache.append(key, value, explicit[:, place : place + 1])
        cache.forget(5)
        for copied in (copy.deepcopy(cache), copy.copy(cache), pickle.loads(pickle.dumps(cache))):
            assert copied.keys.untyped_storage().nbytes() == 4 * PER_TOKEN * 15
            assert (copied.first_position, copied.next_position) == (5, 20)
            copied.append(*parts(1)[0], torch.tensor([7]))
            assert torch.equal(copied.key_position[:, -1], torch.tensor([7, 7]))
        assert_holds(cache, pieces[5:20])
        cache.append(*pieces[20], explicit[:, 20:])
        assert_holds(cache, pieces[5:21])


def test_a_full_cache_is_saved_and_copied() -> None:
    layer = RelativeMultiheadAttention(HEADS * WIDTH, HEADS, RotaryEmbedding(WIDTH))
    memory, query = torch.randn(BATCH, 6, HEADS * WIDTH), torch.randn(BATCH, 1, HEADS * WIDTH)
    with torch.no_grad():
        cache, file = layer.remember(memory, key_position=3), io.BytesIO()
        torch.save(cache, file)
        file.seek(0)
        for copied in (copy.deepcopy(cache), torch.load(file, weights_only=False)):
            assert copied.is_full and copied.key_position == 3
            assert torch.equal(layer(query, cache=copied), layer(query, cache=cache))


def test_detached_tensors_are_those_it_holds() -> None:
    """No copy, and no gradient."""
    cache, (key, value) = KVCache(), parts(3)[0]
    cache.append(key.requires_grad_(), value)
    cache.detach()
    assert cache.keys.data_ptr() == key.data_ptr() and not cache.keys.requires_grad and key.requires_grad
