"""Nested and sparse tensors, wherever a tensor is asked for."""

import pytest
import torch
from torch import Tensor

from relattn import RelativeEmbedding, ShapeError, T5Bias, relative_attention
from relattn.nn import RelativeMultiheadAttention
from tests.bad_input.refusal import call, ones, refused

SIZES = {
    "query": (2, 4, 5, 8),
    "key": (2, 4, 6, 8),
    "value": (2, 4, 6, 8),
    "attn_mask": (2, 4, 5, 6),
    "key_mask": (2, 6),
    "segment_ids": (2, 6),
    "query_position": (2, 5),
    "key_position": (2, 6),
}
DTYPES = {"attn_mask": torch.bool, "key_mask": torch.bool, "segment_ids": torch.long} | dict.fromkeys(
    ("query_position", "key_position"), torch.long
)


def nested(tensor: Tensor) -> Tensor:
    return torch.nested.nested_tensor(list(tensor))


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors is in prototype stage")
@pytest.mark.parametrize("name", SIZES)
def test_nested(name):
    came = nested(ones(*SIZES[name], dtype=DTYPES.get(name, torch.float32)))
    with refused(TypeError, f"{name}: got a nested tensor; expected..."):
        call(**{name: came})


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors is in prototype stage")
@pytest.mark.parametrize("name", ["query", "key", "value"])
def test_the_way_out_of_nested_inputs(name):
    expected = "a padded one with key_mask, or packed documents with segment_ids"
    with refused(TypeError, f"{name}: got a nested tensor; expected {expected}"):
        call(**{name: nested(ones(2, 4, 6, 8))})
    inputs = {"query": ones(2, 5, 32), "key": ones(2, 5, 32), "value": ones(2, 5, 32)}
    with refused(TypeError, f"{name}: got a nested tensor; expected {expected}"):
        RelativeMultiheadAttention(32, 4)(**{**inputs, name: nested(ones(2, 5, 32))})


@pytest.mark.parametrize("name", SIZES)
def test_sparse(name):
    came = ones(*SIZES[name], dtype=DTYPES.get(name, torch.float32)).to_sparse()
    said = f"{name}: got layout torch.sparse_coo; expected a dense tensor; convert it with .to_dense()"
    with refused(TypeError, said):
        call(**{name: came})


TURNED = "...; if query, key and value are [batch, length, heads, width], turn each with .transpose(1, 2)"


@pytest.mark.parametrize(
    "argument",
    [
        {"encoding": T5Bias(4)},
        {"encoding": RelativeEmbedding(8, 16, num_heads=4)},
        {"key_mask": torch.ones(2, 16, dtype=torch.bool)},
        {"segment_ids": torch.zeros(2, 16, dtype=torch.long)},
        {"attn_mask": torch.zeros(16, 16)},
        {"sinks": torch.zeros(4)},
        {"key_bias": torch.zeros(2, 4, 16)},
    ],
    ids=["bias", "table", "key_mask", "segment_ids", "attn_mask", "sinks", "key_bias"],
)
def test_heads_after_the_length(argument):
    """FlashAttention's layout fits as it is, for other sizes; what else came tells that it is none of these."""
    x = ones(2, 16, 4, 8)
    with refused(ShapeError, TURNED):
        relative_attention(x, x, x, **argument)
    relative_attention(*(x.transpose(1, 2),) * 3, **argument)


def test_heads_after_the_length_of_other_keys():
    with refused(ShapeError, "key: got 9 heads" + TURNED):
        relative_attention(ones(2, 6, 4, 8), ones(2, 9, 4, 8), ones(2, 9, 4, 8))


def test_other_sizes_are_not_taken_for_a_layout():
    x = ones(2, 16, 4, 8)
    with pytest.raises(ShapeError) as caught:
        relative_attention(x, x, x, key_mask=torch.ones(2, 15, dtype=torch.bool))
    assert "transpose" not in str(caught.value)
