"""KVCache: its constructor, append, fill, truncate, forget and reorder."""

import copy
import pickle

import numpy as np
import pytest
import torch

from relattn import ShapeError
from relattn.nn import KVCache
from tests.bad_input.refusal import ones, refused

NAN = float("nan")
OTHER_KINDS = [({"dtype": torch.float64}, "torch.float64 on cpu"), ({"device": "meta"}, "torch.float32 on meta")]


def filled(max_length: int | None = None, chunks: tuple[int, ...] = (3,)) -> KVCache:
    cache = KVCache(max_length)
    for chunk in chunks:
        cache.append(ones(2, 4, chunk, 8), ones(2, 4, chunk, 8))
    return cache


@pytest.mark.parametrize("came", [0, -1, 1.5, "8", True, NAN, [8], torch.tensor(8)], ids=repr)
def test_max_length(came):
    with refused(ValueError, f"max_length: got {came!r}; expected an int of at least 1"):
        KVCache(came)


@pytest.mark.parametrize("cache", [KVCache, filled], ids=["empty", "filled"])
@pytest.mark.parametrize("name", ["key", "value"])
@pytest.mark.parametrize("came", [None, "x", [[1.0]], np.ones((2, 4, 3, 8), np.float32)], ids=repr)
def test_append_no_tensor(cache, name, came):
    with refused(TypeError, f"{name}: got {type(came).__name__}; expected a tensor [batch, heads, length, width]"):
        cache().append(**{"key": ones(2, 4, 3, 8), "value": ones(2, 4, 3, 8), name: came})


@pytest.mark.parametrize("name", ["key", "value"])
@pytest.mark.parametrize("size", [(), (4, 3, 8), (1, 2, 4, 3, 8)], ids=str)
def test_append_rank(name, size):
    with refused(ShapeError, f"{name}: got shape {list(size)}; expected four axes [batch, heads, length, width]"):
        KVCache().append(**{"key": ones(2, 4, 3, 8), "value": ones(2, 4, 3, 8), name: ones(*size)})


@pytest.mark.parametrize("size", [(3, 4, 3, 8), (2, 2, 3, 8), (2, 4, 1, 8)], ids=str)
def test_append_key_and_value_of_two_sizes(size):
    said = f"value: got shape {list(size)} beside key [2, 4, 3, 8]; expected the same batch, heads and length"
    with refused(ShapeError, said):
        KVCache().append(ones(2, 4, 3, 8), ones(*size))


@pytest.mark.parametrize("name", ["key", "value"])
@pytest.mark.parametrize("dtype", [torch.int64, torch.bool, torch.complex64], ids=str)
def test_append_no_floats(name, dtype):
    said = f"{name}: got dtype {dtype}; expected float64, float32, bfloat16 or float16; convert it with .to()"
    with refused(TypeError, said):
        KVCache().append(**{"key": ones(2, 4, 3, 8), "value": ones(2, 4, 3, 8), name: ones(2, 4, 3, 8, dtype=dtype)})


@pytest.mark.parametrize(
    ("kind", "came"),
    [({"dtype": torch.float64}, "torch.float64 on cpu"), ({"device": "meta"}, "torch.float32 on meta")],
)
def test_append_key_and_value_of_two_kinds(kind, came):
    said = f"value: got {came} beside key torch.float32 on cpu; expected one dtype and device; convert with .to()"
    with refused(TypeError, said):
        KVCache().append(ones(2, 4, 3, 8), ones(2, 4, 3, 8, **kind))


@pytest.mark.parametrize(
    ("key", "value", "name"),
    [
        ((3, 4, 1, 8), (3, 4, 1, 8), "key"), ((2, 2, 1, 8), (2, 2, 1, 8), "key"), ((2, 4, 1, 7), (2, 4, 1, 8), "key"),
        ((2, 4, 1, 8), (2, 4, 1, 7), "value"),
    ],
)  # fmt: skip
def test_append_beside_what_it_holds(key, value, name):
    cache = filled()
    came = list(key if name == "key" else value)
    way_out = "which the cache holds; start a new cache for others"
    with refused(ShapeError, f"{name}: got shape {came}; expected batch, heads and width of [2, 4, 3, 8], {way_out}"):
        cache.append(ones(*key), ones(*value))
    assert (cache.length, cache.next_position) == (3, 3)


@pytest.mark.parametrize(
    ("kind", "came"),
    [({"dtype": torch.float64}, "torch.float64 on cpu"), ({"device": "meta"}, "torch.float32 on meta")],
)
def test_append_of_another_kind_than_it_holds(kind, came):
    said = (
        f"key: got {came}; expected torch.float32 on cpu, as the cache holds; convert with .to(), or start a new cache"
    )
    with refused(TypeError, said):
        filled().append(ones(2, 4, 1, 8, **kind), ones(2, 4, 1, 8, **kind))


@pytest.mark.parametrize("came", [-1, 1.5, "2", None, True, NAN, [2], torch.tensor(2)], ids=repr)
def test_truncate_no_length(came):
    with refused(ValueError, f"length: got {came!r}; expected an int of at least 0"):
        filled().truncate(came)


def test_truncate_ahead():
    with refused(ValueError, "length: got 4; expected 0..3, for the cache holds slots 0..2"):
        filled().truncate(4)


def test_truncate_an_empty_cache():
    with refused(ValueError, "length: got 1; expected 0..0, for the cache holds no slots"):
        KVCache().truncate(1)


@pytest.mark.parametrize("came", [0, 1, 3, 9])
def test_truncate_a_rolling_cache(came):
    """It has forgotten the positions before 1; a query at 3 would need 0, 1 and 2."""
    cache = filled(4, (4, 4))
    said = f"length: got {came}; expected 4..8, for the cache holds slots 1..7 and rolls with max_length=4"
    with refused(ValueError, said):
        cache.truncate(came)
    assert (cache.first_position, cache.next_position) == (1, 8)


def test_truncate_a_rolling_cache_that_has_not_rolled():
    cache = filled(4, (3,))
    cache.truncate(1)
    assert (cache.first_position, cache.next_position) == (0, 1)


@pytest.mark.parametrize("came", [-1, 1.5, "2", None, True, NAN, [2], torch.tensor(2)], ids=repr)
def test_forget_no_slot(came):
    with refused(ValueError, f"first_position: got {came!r}; expected an int of at least 0"):
        filled().forget(came)


@pytest.mark.parametrize(("came", "held"), [(2, "slots 3..5"), (7, "slots 3..5")])
def test_forget_out_of_range(came, held):
    cache = filled(chunks=(6,))
    cache.forget(3)
    with refused(ValueError, f"first_position: got {came}; expected 3..6, for the cache holds {held}"):
        cache.forget(came)
    assert (cache.first_position, cache.length) == (3, 3)


def test_forget_everything():
    cache = filled()
    cache.forget(3)
    with refused(ValueError, "length: got 2; expected 3..3, for the cache holds no slots"):
        cache.truncate(2)
    keys, _ = cache.append(ones(2, 4, 1, 8), ones(2, 4, 1, 8))
    assert (keys.shape[2], cache.first_position, cache.next_position) == (1, 3, 4)


def test_truncate_a_rolling_cache_that_has_forgotten_but_not_rolled():
    cache = filled(4, (3,))
    cache.forget(1)
    cache.truncate(1)
    assert (cache.first_position, cache.next_position) == (1, 1)


def full():
    cache = KVCache()
    cache.fill(ones(2, 4, 3, 8), ones(2, 4, 3, 8))
    return cache


def test_truncate_a_rolling_cache_with_positions_so_far_back_that_the_next_query_misses_keys():
    """A row's next query stands behind the furthest position that the row keeps; 0 and 1, or 2 and 3, were dropped."""
    cache = KVCache(max_length=3)
    cache.append(ones(2, 4, 4, 8), ones(2, 4, 4, 8), torch.tensor([[0, 1, 2, 3], [2, 3, 4, 5]]))
    one_more(cache, torch.tensor([[4], [6]]))
    said = "length: got {}; expected 4..5, for the cache holds slots 2..4 and rolls with max_length=3"
    for came in (2, 3):
        with refused(ValueError, said.format(came)):
            cache.truncate(came)
        assert (cache.first_position, cache.next_position) == (2, 5)
    cache.truncate(5)
    cache.truncate(4)
    one_more(cache, torch.tensor([[4], [6]]))
    cache.forget(cache.next_position)
    cache.truncate(cache.next_position)


def test_truncate_a_rolling_cache_whose_positions_were_given_after_it_rolled():
    cache = filled(3, (4, 3))  # slots 0 and 1 are gone: a query at 4 is the first that misses nothing
    one_more(cache, torch.tensor([7]))
    said = "length: got 6; expected 7..8, for the cache holds slots 5..7 and rolls with max_length=3"
    with refused(ValueError, said):
        cache.truncate(6)
    cache.truncate(7)


@pytest.mark.parametrize("copied", [copy.deepcopy, copy.copy, pickle.dumps], ids=lambda f: f.__name__)
@pytest.mark.parametrize("name", ["key", "value"])
def test_a_copy_of_a_graph(name, copied):
    cache, new = KVCache(), {"key": ones(2, 4, 3, 8), "value": ones(2, 4, 3, 8)}
    new[name] = 2.0 * new[name].requires_grad_()
    cache.append(**new)
    said = "cache: what it holds is part of a graph, which a copy cannot carry; call detach() before you copy or..."
    with refused(ValueError, said):
        copied(cache)
    cache.detach()
    copied(cache)


def test_truncate_to_nothing_leaves_a_cache_as_new():
    cache = filled()
    cache.truncate(0)
    assert cache.keys is None and cache.values is None
    cache.append(ones(3, 2, 1, 4), ones(3, 2, 1, 4))
    assert (cache.length, cache.next_position) == (1, 1)


def test_append_to_a_full_cache():
    said = (
        "cache: got a full one, with a memory of 3 keys; expected one that takes more; attend to it, or append to a "
        "new KVCache()"
    )
    cache = full()
    with refused(ValueError, said):
        cache.append(ones(2, 4, 1, 8), ones(2, 4, 1, 8))
    assert (cache.length, cache.next_position) == (3, 3)


@pytest.mark.parametrize("change", [lambda cache: cache.truncate(2), lambda cache: cache.forget(1)])
def test_a_full_cache_is_kept_whole(change):
    said = (
        "cache: got a full one, which keeps its memory of 3 keys whole; expected one that was appended to; leave keys "
        "out with key_mask, or remember another memory"
    )
    with refused(ValueError, said):
        change(full())


@pytest.mark.parametrize(
    ("cache", "state"),
    [
        (lambda: KVCache(4), "rolls with max_length=4"), (filled, "holds 3 keys"), (full, "holds 3 keys"),
        (lambda: filled(4), "holds 3 keys"),
    ],
)  # fmt: skip
def test_fill_a_cache_that_is_no_new_one(cache, state):
    said = (
        f"cache: got one that {state}; expected an empty one without max_length, to hold a memory; fill a new KVCache()"
    )
    with refused(ValueError, said):
        cache().fill(ones(2, 4, 3, 8), ones(2, 4, 3, 8))


def test_fill_with_keys_and_values_that_differ():
    said = "value: got shape [2, 4, 4, 8] beside key [2, 4, 3, 8]; expected the same batch, heads and length"
    with refused(ShapeError, said):
        KVCache().fill(ones(2, 4, 3, 8), ones(2, 4, 4, 8))
    with refused(ShapeError, "key_position: got shape [4]; expected a start, [3] or [2, 3]"):
        KVCache().fill(ones(2, 4, 3, 8), ones(2, 4, 3, 8), torch.arange(4))


EVERY = "the position of every new token, [1] or [2, 1]"


def one_more(cache, position):
    cache.append(ones(2, 4, 1, 8), ones(2, 4, 1, 8), position)


@pytest.mark.parametrize("came", [3, True, "x", [3], torch.tensor(3)], ids=repr)
def test_positions_that_are_not_listed(came):
    said = f"position: got {came!r} with a cache, which counts on by itself; expected None, or {EVERY}"
    with refused(ValueError, said):
        one_more(filled(), came)


@pytest.mark.parametrize("size", [(2,), (1, 1), (2, 4)], ids=str)
def test_positions_of_another_size(size):
    with refused(ShapeError, f"position: got shape {list(size)} with a cache; expected {EVERY}"):
        one_more(filled(), ones(*size, dtype=torch.long))


def test_positions_that_are_no_integers():
    with refused(TypeError, "position: got dtype torch.float32; expected integer positions; convert with .long()"):
        one_more(filled(), ones(2, 1))


def test_positions_left_out_after_some_were_given():
    cache = filled()
    one_more(cache, torch.tensor([3]))
    said = (
        "position: got None after positions were given before; expected that of every new token, [1] or [2, 1]; the "
        "cache does not guess it"
    )
    with refused(ValueError, said):
        one_more(cache, None)
    assert cache.length == 4
    cache.truncate(0)
    one_more(cache, None)
    assert cache.key_position == 0


GOES_BACK = (
    "expected at least {}, for the rolling cache (max_length=3) has dropped keys that an earlier query sees; give "
    "padding the position of the token before it, or make max_length larger"
)


def test_positions_that_go_back_behind_what_was_dropped():
    """Slots 0 and 1 were dropped, the positions 0 and 1 of one row, 2 and 3 of the other, which a query at 2 sees."""
    cache = KVCache(max_length=3)
    cache.append(ones(2, 4, 4, 8), ones(2, 4, 4, 8), torch.tensor([[0, 1, 2, 3], [2, 3, 4, 5]]))
    one_more(cache, torch.tensor([[4], [6]]))
    assert (cache.first_position, cache.length) == (2, 3)
    with refused(ValueError, f"position: got 2 in row 1; {GOES_BACK.format(6)}"):
        one_more(cache, torch.tensor([[5], [2]]))
    cache.reorder(torch.tensor([1, 0]))
    one_more(cache, torch.tensor([[6], [4]]))


def test_positions_that_go_back_behind_what_was_dropped_before_they_were_given():
    cache = filled(3, (4, 3))  # slots 0 and 1 are gone
    with refused(ValueError, f"position: got 2 in row 0; {GOES_BACK.format(4)}"):
        one_more(cache, torch.tensor([[2], [7]]))


ROWS = "expected a 1-d integer tensor of batch rows"


@pytest.mark.parametrize("came", [None, 1, [0, 1], "0", np.array([0, 1])], ids=repr)
def test_reorder_no_tensor(came):
    with refused(TypeError, f"index: got {type(came).__name__}; {ROWS}"):
        filled().reorder(came)


@pytest.mark.parametrize(
    ("size", "dtype"),
    [
        ((), torch.int64), ((2, 1), torch.int64), ((2,), torch.float32), ((2,), torch.bool), ((2,), torch.complex64),
    ],
    ids=str,
)  # fmt: skip
def test_reorder_another_tensor(size, dtype):
    with refused(TypeError, f"index: got {dtype} {list(size)}; {ROWS}"):
        filled().reorder(ones(*size, dtype=dtype))


@pytest.mark.parametrize("came", [[2], [-1], [0, 5], [-1, 1]], ids=str)
def test_reorder_out_of_range(came):
    with refused(ValueError, f"index: got rows {min(came)}..{max(came)}; expected 0..1, the cache's rows"):
        filled().reorder(torch.tensor(came))


@pytest.mark.parametrize("dtype", [torch.uint8, torch.int8, torch.int16, torch.int32], ids=str)
def test_reorder_by_narrow_integers(dtype):
    cache = KVCache()
    cache.append(torch.randn(2, 4, 3, 8), torch.randn(2, 4, 3, 8))
    keys, values = cache.append(ones(2, 4, 0, 8), ones(2, 4, 0, 8))
    cache.reorder(torch.tensor([1, 0, 1], dtype=dtype))
    reordered = cache.append(ones(3, 4, 0, 8), ones(3, 4, 0, 8))
    assert torch.equal(reordered[0], keys[[1, 0, 1]])
    assert torch.equal(reordered[1], values[[1, 0, 1]])
