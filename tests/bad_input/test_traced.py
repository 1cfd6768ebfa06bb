"""torch.jit.trace keeps the lengths of its example: every call, layer and patched model refuses it."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from transformers import DebertaV2Config, DebertaV2Model, T5Config, T5EncoderModel

import relattn
import relattn.hf
from relattn import UnsupportedError
from tests.bad_input.refusal import refused

SAID = (
    "torch.jit.trace: got a call of relattn, whose lengths a trace would fix; expected torch.export.export, or "
    "torch.onnx.export with dynamo=True, which keep lengths open"
)
ENCODINGS = [None, relattn.ShawEmbedding(4, 2), relattn.RelativeEmbedding(4, 8), relattn.T5Bias(2),
             relattn.AlibiBias(2),
             relattn.TransformerXLEmbedding(2, 4), relattn.RotaryEmbedding(4)]  # fmt: skip


@pytest.mark.parametrize("encoding", ENCODINGS, ids=lambda encoding: type(encoding).__name__)
@pytest.mark.parametrize("answer", [relattn.relative_attention, relattn.attention_weights])
def test_a_call(answer: Callable[..., Tensor], encoding: relattn.RelativeEncoding | None):
    with refused(UnsupportedError, SAID):
        torch.jit.trace(lambda x: answer(x, x, x, encoding=encoding), torch.randn(1, 2, 5, 4))


@pytest.mark.parametrize(
    "layer", [relattn.nn.RelativeMultiheadAttention(8, 2), relattn.nn.RelPositionMultiHeadedAttention(8, 2)]
)
def test_a_layer(layer: nn.Module):
    with refused(UnsupportedError, SAID):
        torch.jit.trace(layer, torch.randn(1, 5, 8))


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_the_exporter_that_traces():
    layer = relattn.nn.RelativeMultiheadAttention(8, 2)
    for model in (layer, nn.Sequential(layer)):
        with refused(UnsupportedError, SAID):
            torch.onnx.export(model, (torch.randn(1, 5, 8),), "never", dynamo=False)


def test_a_score_mod():
    with refused(UnsupportedError, SAID):
        torch.jit.trace(lambda x: relattn.flex_score_mod(relattn.T5Bias(2), x, x), torch.randn(1, 2, 5, 4))


def t5() -> nn.Module:
    return T5EncoderModel(T5Config(vocab_size=9, d_model=8, d_kv=4, d_ff=8, num_layers=1, num_heads=2))


def deberta() -> nn.Module:
    """Without the refusal its trace ends before a call of attention."""
    sizes = {"hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 8}
    return DebertaV2Model(DebertaV2Config(vocab_size=9, relative_attention=True, pos_att_type=["c2p"], **sizes))


@pytest.mark.parametrize("make", [t5, deberta])
def test_a_patched_model(make: Callable[[], nn.Module]):
    model = make()
    relattn.hf.patch(model)
    with refused(UnsupportedError, SAID):
        torch.jit.trace(model, torch.ones(1, 5, dtype=torch.long))
