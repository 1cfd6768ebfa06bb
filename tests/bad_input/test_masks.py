"""attn_mask, key_mask and segment_ids: kinds, sizes, devices."""

import numpy as np
import pytest
import torch

from relattn import AlibiBias, ScoreTerms, ShapeError, T5Bias, attention_weights, explain, relative_attention
from relattn.checks.values import kind_of
from tests.bad_input.refusal import call, ones, refused

KEPT = "expected a boolean tensor, True where a key is kept; compare (mask != 0) to make one"


@pytest.mark.parametrize("came", [1, True, "x", [[True] * 6] * 2, np.ones((2, 6), bool)], ids=repr)
def test_key_mask_no_tensor(came):
    with refused(TypeError, f"key_mask: got {type(came).__name__}; {KEPT}"):
        call(key_mask=came)


@pytest.mark.parametrize("dtype", [torch.float32, torch.int64, torch.uint8], ids=str)
def test_key_mask_dtype(dtype):
    with refused(TypeError, f"key_mask: got {dtype}; {KEPT}"):
        call(key_mask=ones(2, 6, dtype=dtype))


@pytest.mark.parametrize("size", [(), (6,), (2, 5), (1, 6), (3, 6), (6, 2), (2, 1, 1, 6), (2, 4, 5, 6)], ids=str)
def test_key_mask_sizes(size):
    with refused(ShapeError, f"key_mask: got shape {list(size)}; expected [2, 6] (batch, key length)"):
        call(key_mask=ones(*size, dtype=torch.bool))


def test_key_mask_device():
    with refused(ValueError, "key_mask: got device meta; expected cpu, the key's; move it with .to()"):
        call(key_mask=ones(2, 6, dtype=torch.bool, device="meta"))


@pytest.mark.parametrize("came", [1, True, "x", [[True]], np.ones((5, 6), bool)], ids=repr)
def test_attn_mask_no_tensor(came):
    with refused(TypeError, f"attn_mask: got {type(came).__name__}; expected a boolean or float tensor"):
        call(attn_mask=came)


@pytest.mark.parametrize("encoding", [T5Bias(4), T5Bias(4) + AlibiBias(4), ScoreTerms()], ids=kind_of)
@pytest.mark.parametrize("function", [relative_attention, attention_weights, explain])
def test_an_encoding_in_the_place_of_attn_mask(function, encoding):
    got = f"attn_mask: got {kind_of(encoding)}; expected a boolean or float tensor; give an encoding as encoding="
    with refused(TypeError, got):
        function(*[ones(2, 4, 5, 6)] * 3, encoding)


@pytest.mark.parametrize("dtype", [torch.int64, torch.uint8, torch.float64, torch.float16, torch.complex64], ids=str)
def test_attn_mask_dtype(dtype):
    way_out = (
        "convert it with .to()" if dtype.is_floating_point else "a number could mean two things, compare it (mask != 0)"
    )
    said = (
        f"attn_mask: got dtype {dtype}; expected bool (True attends), or torch.float32 (added to the scores); {way_out}"
    )
    with refused(TypeError, said):
        call(attn_mask=ones(5, 6, dtype=dtype))


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16, torch.float16], ids=str)
def test_attn_mask_dtype_beside_another_query(dtype):
    """Its own dtype or float32: both are named, where they are two."""
    other = torch.float16 if dtype == torch.bfloat16 else torch.bfloat16
    query, key = ones(2, 4, 5, 8, dtype=dtype), ones(2, 4, 6, 8, dtype=dtype)
    said = (
        f"attn_mask: got dtype {other}; expected bool (True attends), or {dtype} or torch.float32 (added to the "
        "scores); convert it with .to()"
    )
    with refused(TypeError, said):
        relative_attention(query, key, key, attn_mask=ones(5, 6, dtype=other))


@pytest.mark.parametrize(
    "size", [(5,), (6, 5), (2, 6), (0, 6), (4, 6), (2, 5, 6), (3, 4, 5, 6), (2, 3, 5, 6), (1, 2, 4, 5, 6)], ids=str
)
@pytest.mark.parametrize("dtype", [torch.bool, torch.float32], ids=str)
def test_attn_mask_sizes(size, dtype):
    full = "[2, 4, 5, 6] (batch, heads, queries, keys)"
    with refused(ShapeError, f"attn_mask: got shape {list(size)}; expected one that broadcasts to {full}"):
        call(attn_mask=ones(*size, dtype=dtype))


def test_attn_mask_device():
    with refused(ValueError, "attn_mask: got device meta; expected cpu, the query's; move it with .to()"):
        call(attn_mask=ones(5, 6, dtype=torch.bool, device="meta"))


def ids(*size: int, dtype: torch.dtype = torch.long, device: str = "cpu") -> torch.Tensor:
    return ones(*size, dtype=dtype, device=device)


@pytest.mark.parametrize(
    ("came", "name"),
    [
        (1, "int"), ("x", "str"), ([0, 1], "int"), ((None, None), "NoneType"), (np.ones((2, 5)), "ndarray"),
        ((ids(2, 5), None), "NoneType"), ((ids(2, 5), ids(2, 6, dtype=torch.float32)), "torch.float32"),
        ((ids(2, 5, dtype=torch.bool), ids(2, 6)), "torch.bool"),
    ],
)  # fmt: skip
def test_segment_ids_kinds(came, name):
    with refused(TypeError, f"segment_ids: got {name}; expected an integer tensor [batch, length]"):
        call(segment_ids=came)


@pytest.mark.parametrize("count", [0, 1, 3])
def test_segment_ids_neither_one_nor_a_pair(count):
    said = f"segment_ids: got {count} tensors; expected one [batch, length], or a pair for queries and keys"
    with refused(ValueError, said):
        call(segment_ids=(ids(2, 5),) * count)


@pytest.mark.parametrize(
    ("came", "said"),
    [
        (ids(2, 5), "[2, 5] for the key side; expected [2, 6]"),
        (ids(2, 6), "[2, 6] for the query side; expected [2, 5]"),
        ((ids(2, 6), ids(2, 5)), "[2, 6] for the query side; expected [2, 5]"),
        ((ids(2, 5), ids(1, 6)), "[1, 6] for the key side; expected [2, 6]"),
        ((ids(5), ids(6)), "[5] for the query side; expected [2, 5]"),
    ],
)
def test_segment_ids_sizes(came, said):
    way_out = "give a pair (query ids, key ids) where the lengths differ"
    with refused(ShapeError, f"segment_ids: got shape {said}; {way_out}"):
        call(segment_ids=came)


@pytest.mark.parametrize("side", ["query", "key"])
def test_segment_ids_device(side):
    devices = ("meta", "cpu") if side == "query" else ("cpu", "meta")
    with refused(ValueError, f"segment_ids: got device meta; expected cpu, the {side}'s; move it with .to()"):
        call(segment_ids=(ids(2, 5, device=devices[0]), ids(2, 6, device=devices[1])))
