"""query, key and value: type, rank, dtype, device, sizes, heads."""

import numpy as np
import pytest
import torch

from relattn import ShapeError, attention_weights, explain, relative_attention
from tests.bad_input.refusal import call, ones, refused

TENSORS = ("query", "key", "value")
FUNCTIONS = (relative_attention, attention_weights, explain)
FLOATS = "expected float64, float32, bfloat16 or float16; convert it with .to()"
AXES = "expected a tensor [batch, heads, length, width]"
AT_LEAST_THREE = (
    "expected [..., heads, length, width], such as four axes [batch, heads, length, width]; give one head an axis of "
    "its own with .unsqueeze(-3)"
)


@pytest.mark.parametrize("name", TENSORS)
@pytest.mark.parametrize("came", [None, [[1.0]], 3, "query", np.ones((2, 4, 6, 8), np.float32)], ids=repr)
def test_no_tensor(name, came):
    with refused(TypeError, f"{name}: got {type(came).__name__}; {AXES}"):
        call(**{name: came})


@pytest.mark.parametrize("name", TENSORS)
@pytest.mark.parametrize("size", [(), (8,), (6, 8)], ids=str)
def test_rank(name, size):
    with refused(ShapeError, f"{name}: got shape {list(size)}; {AT_LEAST_THREE}"):
        call(**{name: ones(*size)})


@pytest.mark.parametrize("name", TENSORS)
@pytest.mark.parametrize("dtype", [torch.int64, torch.uint8, torch.bool, torch.complex64, torch.float8_e4m3fn], ids=str)
def test_no_float(name, dtype):
    with refused(TypeError, f"{name}: got dtype {dtype}; {FLOATS}"):
        call(**{name: ones(2, 4, 6, 8).to(dtype)})


@pytest.mark.parametrize("name", ("key", "value"))
@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16, torch.float16], ids=str)
def test_two_dtypes(name, dtype):
    said = f"{name}: got dtype {dtype}; expected torch.float32, the query's; convert with .to()"
    with refused(TypeError, said):
        call(**{name: ones(2, 4, 6, 8, dtype=dtype)})


@pytest.mark.parametrize("name", ("key", "value"))
def test_two_devices(name):
    with refused(ValueError, f"{name}: got device meta; expected cpu, the query's; move it with .to()"):
        call(**{name: ones(2, 4, 6, 8, device="meta")})


def test_query_alone_on_another_device():
    with refused(ValueError, "key: got device cpu; expected meta, the query's; move it with .to()"):
        call(query=ones(2, 4, 5, 8, device="meta"))


@pytest.mark.parametrize("function", FUNCTIONS)
@pytest.mark.parametrize(
    ("changes", "said"),
    [
        (
            {"query": ones(3, 4, 5, 8)},
            "key: got batch 2 ([2, 4, 6, 8]) beside query [3, 4, 5, 8]; expected the same batch",
        ),
        (
            {"key": ones(3, 4, 6, 8)},
            "key: got batch 3 ([3, 4, 6, 8]) beside query [2, 4, 5, 8]; expected the same batch",
        ),
        (
            {"value": ones(3, 4, 6, 8)},
            "value: got batch 3 ([3, 4, 6, 8]) beside query [2, 4, 5, 8]; expected the same batch",
        ),
        ({"query": ones(2, 4, 5, 7)}, "key: got width 8 ([2, 4, 6, 8]) beside query [2, 4, 5, 7]; expected width 7"),
        ({"key": ones(2, 4, 6, 7)}, "key: got width 7 ([2, 4, 6, 7]) beside query [2, 4, 5, 8]; expected width 8"),
        (
            {"query": ones(2, 4, 5, 0)},
            "query: got shape [2, 4, 5, 0]; expected at least one head and one feature",
        ),
        (
            {"query": ones(2, 0, 5, 8)},
            "query: got shape [2, 0, 5, 8]; expected at least one head and one feature",
        ),
        ({"key": ones(2, 4, 7, 8)}, "value: got length 6 ([2, 4, 6, 8]) beside key [2, 4, 7, 8]; expected length 7"),
        ({"value": ones(2, 4, 0, 8)}, "value: got length 0 ([2, 4, 0, 8]) beside key [2, 4, 6, 8]; expected length 6"),
        ({"value": ones(2, 2, 6, 8)}, "value: got heads 2 ([2, 2, 6, 8]) beside key [2, 4, 6, 8]; expected heads 4"),
        (
            {"key": ones(2, 2, 6, 8), "value": ones(2, 2, 6, 8)},
            "key: got 2 heads ([2, 2, 6, 8]) beside query [2, 4, 5, 8]; expected 4 heads, or enable_gqa=True where "
            "groups of query heads share a key head",
        ),
        (
            {"key": ones(2, 3, 6, 8), "value": ones(2, 3, 6, 8), "enable_gqa": True},
            "key: got 3 heads ([2, 3, 6, 8]) beside query [2, 4, 5, 8]; expected a divisor of 4 with enable_gqa=True",
        ),
        (
            {"key": ones(2, 8, 6, 8), "value": ones(2, 8, 6, 8), "enable_gqa": True},
            "key: got 8 heads ([2, 8, 6, 8]) beside query [2, 4, 5, 8]; expected a divisor of 4 with enable_gqa=True",
        ),
        (
            {"key": ones(2, 0, 6, 8), "value": ones(2, 0, 6, 8), "enable_gqa": True},
            "key: got 0 heads ([2, 0, 6, 8]) beside query [2, 4, 5, 8]; expected a divisor of 4 with enable_gqa=True",
        ),
    ],
)
def test_sizes(function, changes, said):
    with refused(ShapeError, said):
        call(function, **changes)
