"""KVCache: its constructor, append, truncate and reorder."""

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
    way_out = "batch, heads and width must agree, or start a new cache"
    with refused(ShapeError, f"{name}: got shape {came}; the cache holds [2, 4, 3, 8]; {way_out}"):
        cache.append(ones(*key), ones(*value))
    assert (cache.length, cache.next_position) == (3, 3)


@pytest.mark.parametrize(
    ("kind", "came"),
    [({"dtype": torch.float64}, "torch.float64 on cpu"), ({"device": "meta"}, "torch.float32 on meta")],
)
def test_append_of_another_kind_than_it_holds(kind, came):
    said = f"key: got {came}; the cache holds torch.float32 on cpu; convert with .to(), or start a new cache"
    with refused(TypeError, said):
        filled().append(ones(2, 4, 1, 8, **kind), ones(2, 4, 1, 8, **kind))


@pytest.mark.parametrize("came", [-1, 1.5, "2", None, True, NAN, [2], torch.tensor(2)], ids=repr)
def test_truncate_no_length(came):
    with refused(ValueError, f"length: got {came!r}; expected an int of at least 0"):
        filled().truncate(came)


def test_truncate_ahead():
    with refused(ValueError, "length: got 4; the cache holds slots 0..2, so it can be cut to 0..3"):
        filled().truncate(4)


def test_truncate_an_empty_cache():
    with refused(ValueError, "length: got 1; the cache holds no slots, so it can be cut to 0..0"):
        KVCache().truncate(1)


@pytest.mark.parametrize("came", [0, 1, 3, 9])
def test_truncate_a_rolling_cache(came):
    """It has forgotten the positions before 1; a query at 3 would need 0, 1 and 2."""
    cache = filled(4, (4, 4))
    said = f"length: got {came}; the cache holds slots 1..7 and rolls with max_length=4, so it can be cut to 4..8"
    with refused(ValueError, said):
        cache.truncate(came)
    assert (cache.first_position, cache.next_position) == (1, 8)


def test_truncate_a_rolling_cache_that_has_not_rolled():
    cache = filled(4, (3,))
    cache.truncate(1)
    assert (cache.first_position, cache.next_position) == (0, 1)


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
    with refused(ValueError, f"index: got rows {min(came)}..{max(came)}; the cache has rows 0..1"):
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
