"""key_bias, softcap and sinks: kinds, sizes, devices, numbers; and the backends that do not have them."""

import numpy as np
import pytest
import torch

from relattn import ShapeError, UnsupportedError, attention_weights, explain, relative_attention
from relattn.nn import KVCache, RelativeMultiheadAttention
from tests.bad_input.refusal import call, ones, refused

FUNCTIONS = [relative_attention, attention_weights, explain]


@pytest.mark.parametrize("function", FUNCTIONS)
@pytest.mark.parametrize("came", [1, 0.5, "x", [[[0.0] * 6]], np.ones((2, 4, 6))], ids=repr)
def test_key_bias_no_tensor(came, function):
    said = f"key_bias: got {type(came).__name__}; expected a tensor [batch, heads, key length]"
    with refused(TypeError, said):
        call(function, key_bias=came)


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16, torch.complex64], ids=str)
def test_key_bias_dtype(dtype):
    way_out = "convert it with .to()" if dtype.is_floating_point else "to drop keys give key_mask"
    with refused(TypeError, f"key_bias: got dtype {dtype}; expected torch.float32; {way_out}"):
        call(key_bias=ones(2, 4, 6, dtype=dtype))


def test_key_bias_that_is_a_mask():
    said = "key_bias: got dtype torch.bool; expected torch.float32; to drop keys give key_mask"
    with refused(TypeError, said):
        call(key_bias=ones(2, 4, 6, dtype=torch.bool))


def test_key_bias_dtype_beside_a_narrow_query():
    query, key = ones(2, 4, 5, 8, dtype=torch.bfloat16), ones(2, 4, 6, 8, dtype=torch.bfloat16)
    said = "key_bias: got dtype torch.float16; expected torch.bfloat16 or torch.float32; convert it with .to()"
    with refused(TypeError, said):
        relative_attention(query, key, key, key_bias=ones(2, 4, 6, dtype=torch.float16))


@pytest.mark.parametrize(
    "size", [(), (6,), (4, 6), (2, 4, 5), (2, 4, 1), (3, 4, 6), (2, 2, 6), (2, 4, 1, 6), (2, 6, 4)], ids=str
)
def test_key_bias_sizes(size):
    said = (
        f"key_bias: got shape {list(size)}; expected [2, 4, 6] (batch, heads, keys), 1 where batch elements or heads "
        "share it; give an axis that it lacks with .unsqueeze()"
    )
    with refused(ShapeError, said):
        call(key_bias=ones(*size))


def test_key_bias_device():
    with refused(ValueError, "key_bias: got device meta; expected cpu, the query's; move it with .to()"):
        call(key_bias=ones(2, 4, 6, device="meta"))


def test_key_bias_layout():
    said = "key_bias: got layout torch.sparse_coo; expected a dense tensor; convert it with .to_dense()"
    with refused(TypeError, said):
        call(key_bias=ones(2, 4, 6).to_sparse())


@pytest.mark.parametrize("came", [-torch.inf, torch.inf, torch.nan], ids=str)
def test_key_bias_not_finite(came):
    key_bias = ones(2, 1, 6)
    key_bias[1, 0, 3] = came
    with refused(ValueError, f"key_bias: got {came}; expected finite numbers; drop keys with key_mask"):
        call(key_bias=key_bias)


@pytest.mark.graphs
@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
def test_key_bias_not_finite_in_a_graph(backend):
    key_bias = ones(2, 1, 6)
    key_bias[1, 0, 3] = -torch.inf
    compiled = torch.compile(lambda a: call(key_bias=a), backend=backend, fullgraph=True)
    said = "key_bias: got a number that is not finite; expected finite numbers; drop keys with key_mask"
    with pytest.raises(RuntimeError, match=said):
        compiled(key_bias)


@pytest.mark.parametrize("function", FUNCTIONS)
@pytest.mark.parametrize(
    "came", [0, 0.0, -1.0, torch.inf, -torch.inf, torch.nan, True, "30", [30.0], 10**400], ids=repr
)
def test_softcap(came, function):
    shown = "an int of 1329 bits" if came == 10**400 else repr(came)
    said = f"softcap: got {shown}; expected a finite number above 0, or None for no cap"
    with refused(ValueError, said):
        call(function, softcap=came)


FLOAT32 = "above 7.00649e-46 and up to 3.40282e+38, as scores in float32 hold it"
FLOAT64 = "above 5.56268e-309 and up to 1.79769e+308, as scores in float64 hold it"


@pytest.mark.parametrize("function", FUNCTIONS)
@pytest.mark.parametrize(
    ("came", "dtype", "numbers"),
    [
        (1e39, torch.float32, FLOAT32), (1e39, torch.bfloat16, FLOAT32), (1e-46, torch.float16, FLOAT32),
        (1e-300, torch.float32, FLOAT32), (5e-324, torch.float64, FLOAT64),
    ],
    ids=str,
)  # fmt: skip
def test_softcap_that_scores_do_not_hold(came, dtype, numbers, function):
    inputs = {name: ones(2, 4, 6, 8).to(dtype) for name in ("query", "key", "value")}
    with refused(ValueError, f"softcap: got {came}; expected a number {numbers}, or None for no cap"):
        call(function, softcap=came, **inputs)


@pytest.mark.parametrize("came", [30, np.float32(30.0), np.int64(30)], ids=repr)
def test_numbers_of_other_kinds_are_caps(came):
    assert torch.equal(call(softcap=came), call(softcap=30.0))


@pytest.mark.parametrize("function", FUNCTIONS)
@pytest.mark.parametrize("came", [1, 0.5, "x", [0.0] * 4, np.ones(4)], ids=repr)
def test_sinks_no_tensor(came, function):
    said = f"sinks: got {type(came).__name__}; expected a tensor [heads] or [batch, heads, queries]"
    with refused(TypeError, said):
        call(function, sinks=came)


@pytest.mark.parametrize("dtype", [torch.bool, torch.int64, torch.complex64], ids=str)
def test_sinks_dtype(dtype):
    said = f"sinks: got dtype {dtype}; expected float64, float32, bfloat16 or float16; convert it with .to()"
    with refused(TypeError, said):
        call(sinks=ones(4, dtype=dtype))


@pytest.mark.parametrize(
    "size", [(), (1,), (5,), (4, 5), (2, 4), (1, 4, 5), (2, 4, 6), (2, 4, 1), (2, 4, 5, 1)], ids=str
)
def test_sinks_sizes(size):
    said = (
        f"sinks: got shape {list(size)}; expected [4], a number per head, or [2, 4, 5], one per batch element, head "
        "and query; .expand() it to one of them..."
    )
    with refused(ShapeError, said):
        call(sinks=ones(*size))


def test_sinks_device():
    with refused(ValueError, "sinks: got device meta; expected cpu, the query's; move it with .to()"):
        call(sinks=ones(4, device="meta"))


@pytest.mark.parametrize(
    ("asked", "reason"),
    [
        ({"key_bias": ones(1, 1, 6)}, "it has no key bias"),
        ({"softcap": 3.0}, "it has no softcap"),
        ({"sinks": ones(4)}, "it has no sinks"),
    ],
)
def test_pytorchs_own_attention_lacks_them(asked, reason):
    assert reason in explain(ones(2, 4, 5, 8), ones(2, 4, 6, 8), ones(2, 4, 6, 8), **asked).others["sdpa"]
    with refused(UnsupportedError, f"backend='sdpa' cannot run this: ...{reason}...; use 'dense' or ..."):
        call(backend="sdpa", **asked)


@pytest.mark.parametrize("size", [(), (1, 1, 3), (1, 1, 5), (2, 4, 1)], ids=str)
def test_key_bias_through_a_cache(size):
    """It covers every slot so far, those too that the cache has dropped, and the cache is as it was."""
    layer, cache = RelativeMultiheadAttention(8, 4), KVCache(max_length=2)
    layer(ones(2, 3, 8), cache=cache)
    said = f"key_bias: got shape {list(size)} with a cache; expected a last axis of 4, a number for every slot so far"
    with refused(ShapeError, said):
        layer(ones(2, 1, 8), cache=cache, key_bias=ones(*size))
    assert cache.next_position == 3
