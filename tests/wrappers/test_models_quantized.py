"""Patched models whose projections are quantized, in both orders: as near to the float model as the original."""

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

from tests.hf.twins import FLOAT32
from tests.peers.cases import made
from tests.wrappers.models import FAMILIES, OF_A_DTYPE, READ_BY_THE_ORIGINAL, answer, in_both_orders, inputs_of, named

pytestmark = pytest.mark.wrappers

BIASES = ("rel_pos_bias", "rel_pos_x_bias", "rel_pos_y_bias")
"""LayoutLM's projections whose weight the originals look up."""


def dynamic_int8(model: nn.Module, names: list[str]) -> nn.Module:
    return torch.ao.quantization.quantize_dynamic(model, set(names), dtype=torch.qint8)


def torchao_int8(model: nn.Module, names: list[str]) -> nn.Module:
    from torchao.quantization import Int8WeightOnlyConfig, quantize_

    quantize_(model, Int8WeightOnlyConfig(), filter_fn=lambda _, name: name in names)
    return model


def bitsandbytes_8_bit(model: nn.Module, names: list[str]) -> nn.Module:
    from bitsandbytes.nn import Linear8bitLt

    for name in names:
        swap(model, name, lambda *sizes: Linear8bitLt(*sizes, has_fp16_weights=False))
    return model


def bitsandbytes_4_bit(model: nn.Module, names: list[str]) -> nn.Module:
    from bitsandbytes.nn import Linear4bit

    for name in names:
        swap(model, name, lambda *sizes: Linear4bit(*sizes, compute_dtype=torch.float32, quant_type="nf4"))
    return model


def swap(model: nn.Module, name: str, made_for: Callable[[int, int, bool], nn.Module]) -> None:
    projection: Any = model.get_submodule(name)
    other = made_for(projection.in_features, projection.out_features, projection.bias is not None)
    other.load_state_dict(projection.state_dict())
    model.set_submodule(name, other.to("cpu"))


def in_float(projection: Any) -> nn.Linear:
    """What a projection with quantized weights gives, as one in float32."""
    same = nn.Linear(projection.in_features, projection.out_features)
    bias = projection(torch.zeros(1, projection.in_features))
    same.bias.copy_(bias[0])
    same.weight.copy_((projection(torch.eye(projection.in_features)) - bias).t())
    return same


@pytest.mark.parametrize("quantize", [torchao_int8, bitsandbytes_4_bit])
@pytest.mark.parametrize("name", FAMILIES)
@torch.no_grad()
def test_weights(name: str, quantize: Callable[[nn.Module, list[str]], nn.Module]) -> None:
    """The numbers that the original has with the same weights in float32, also where it cannot run quantized."""
    model, inputs = made(name), inputs_of(name)
    names = named(model, nn.Linear, but=OF_A_DTYPE)
    same = quantize(copy.deepcopy(model), names)
    for one in names:
        same.set_submodule(one, in_float(same.get_submodule(one)))
    expected = answer(name, same, inputs)
    for twin in in_both_orders(model, lambda twin: quantize(twin, names)):
        torch.testing.assert_close(answer(name, twin, inputs), expected, **FLOAT32)


@pytest.mark.parametrize("quantize", [dynamic_int8, bitsandbytes_8_bit])
@pytest.mark.parametrize("name", FAMILIES)
@torch.no_grad()
def test_weights_and_features(name: str, quantize: Callable[[nn.Module, list[str]], nn.Module]) -> None:
    """The features are rounded anew in every call, so errors are compared: at most twice the original's."""
    model, inputs = made(name), inputs_of(name)
    names = named(model, nn.Linear, but=(*OF_A_DTYPE, *BIASES, *(READ_BY_THE_ORIGINAL if "wavlm" in name else ())))
    exact = answer(name, model, inputs)
    theirs = (answer(name, quantize(copy.deepcopy(model), names), inputs) - exact).norm()
    for twin in in_both_orders(model, lambda twin: quantize(twin, names)):
        assert 0.0 < (answer(name, twin, inputs) - exact).norm() <= 2.0 * theirs


@pytest.mark.parametrize("name", ["wavlm", "layoutlmv2", "layoutlmv3", "t5", "deberta_v3", "wav2vec2_bert"])
@torch.no_grad()
def test_every_projection_by_its_class(name: str) -> None:
    """As most call it, `quantize_dynamic(model, {nn.Linear})`: the attention then has no parameters."""
    model, inputs = made(name), inputs_of(name)
    exact = answer(name, model, inputs)
    for twin in in_both_orders(model, lambda twin: torch.ao.quantization.quantize_dynamic(twin, {nn.Linear})):
        assert (answer(name, twin, inputs) - exact).norm() <= 0.1 * exact.norm()
