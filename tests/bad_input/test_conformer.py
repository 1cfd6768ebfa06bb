"""RelPositionMultiHeadedAttention, and what RelativeMultiheadAttention.from_torch cannot take over."""

import numpy as np
import pytest
import torch
from torch import nn

from relattn import AlibiBias, ShapeError, UnsupportedError, relative_attention
from relattn.checks.values import kind_of
from relattn.nn import RelativeMultiheadAttention, RelPositionMultiHeadedAttention
from tests.bad_input.refusal import ones, refused


def make(**changes) -> RelPositionMultiHeadedAttention:
    return RelPositionMultiHeadedAttention(**{"embed_dim": 32, "num_heads": 4, **changes})


@pytest.mark.parametrize("name", ["embed_dim", "num_heads"])
@pytest.mark.parametrize("came", [0, -1, 1.5, "4", True, None, np.int64(0), np.bool_(True), torch.tensor(4)], ids=repr)
def test_sizes(name, came):
    with refused(ValueError, f"{name}: got {came!r}; expected an int of at least 1"):
        make(**{name: came})


@pytest.mark.parametrize(
    ("changes", "error", "said"),
    [
        ({"num_heads": 5}, ValueError, "num_heads: got 5 with embed_dim=32; expected a divisor of embed_dim"),
        (
            {"embed_dim": 9, "num_heads": 3},
            ValueError,
            "embed_dim: got 9; expected an even width, a sine and a cosine for each frequency",
        ),
        ({"dropout": 1.1}, ValueError, "dropout: got 1.1; expected a probability between 0 and 1"),
        ({"bias": 1}, TypeError, "bias: got 1; expected True or False"),
        ({"backend": "fast"}, ValueError, "backend: got 'fast'; expected one of 'auto', ..."),
    ],
)
def test_constructor(changes, error, said):
    with refused(error, said):
        make(**changes)


@pytest.mark.parametrize(
    ("changes", "error", "said"),
    [
        ({"query": ones(2, 5, 31)}, ShapeError, "query: got shape [2, 5, 31]; expected a tensor [batch, length, 32]"),
        ({"window": 3}, ValueError, "window: got 3; expected (left, right)..."),
        ({"key_mask": ones(2, 5)}, TypeError, "key_mask: got torch.float32; expected a boolean tensor, True where..."),
        (
            {"key_mask": ones(2, 1, 5, dtype=torch.bool)},  # ESPnet's shape
            ShapeError,
            "key_mask: got shape [2, 1, 5]; expected [2, 5] (batch, key length)",
        ),
    ],
)
def test_forward(changes, error, said):
    with refused(error, said):
        make()(**{"query": ones(2, 5, 32), **changes})


def test_a_layer_is_no_encoding():
    layer, q = make(), ones(1, 4, 5, 8)
    with refused(TypeError, "encoding: got RelPositionMultiHeadedAttention; expected a RelativeEncoding or None"):
        RelativeMultiheadAttention(32, 4, layer)
    with refused(
        TypeError, "encoding: got RelPositionMultiHeadedAttention; expected a RelativeEncoding, ScoreTerms..."
    ):
        relative_attention(q, q, q, encoding=layer)
    with refused(TypeError, "sum of encodings: got RelPositionMultiHeadedAttention; expected a RelativeEncoding"):
        AlibiBias(4) + layer
    with refused(TypeError, "sum of encodings: got RelPositionMultiHeadedAttention; expected a RelativeEncoding"):
        layer + AlibiBias(4)


def test_a_backend_that_cannot():
    with pytest.raises(UnsupportedError, match="sdpa"):
        make(backend="sdpa")(ones(2, 5, 32))


@pytest.mark.parametrize("name", ["add_bias_kv", "add_zero_attn"])
def test_keys_that_stand_nowhere(name):
    said = (
        f"attention: was made with {name}=True, which adds a key that stands at no position; relattn has none such, "
        f"take over a module made with {name}=False"
    )
    with refused(UnsupportedError, said):
        RelativeMultiheadAttention.from_torch(nn.MultiheadAttention(32, 4, **{name: True}))


@pytest.mark.parametrize("came", [None, "x", nn.Linear(2, 2), nn.MultiheadAttention, make()], ids=lambda v: str(v)[:9])
def test_no_module_of_torch(came):
    with refused(TypeError, f"attention: got {kind_of(came)}; expected a torch.nn.MultiheadAttention"):
        RelativeMultiheadAttention.from_torch(came)


def test_no_encoding():
    with refused(TypeError, "encoding: got str; expected a RelativeEncoding or None"):
        RelativeMultiheadAttention.from_torch(nn.MultiheadAttention(32, 4), "rope")
