"""Quantized Linears in relattn's own layers, those of encodings included."""

import copy
from collections.abc import Callable

import pytest
import torch
from torch import nn

from relattn.nn.projected import ProjectedAttention
from tests.wrappers.layers import CASES, WITH_LINEAR, linears, random_input

pytestmark = [pytest.mark.wrappers, pytest.mark.filterwarnings("ignore::DeprecationWarning")]
FEATURES = 5 / 127
"""Five products follow one another (q or k, positions, scores, v, output); each number is off by a step of 127."""


def swapped(layer: nn.Module, make: Callable[[nn.Linear], nn.Module]) -> nn.Module:
    for name in linears(layer):
        linear = layer.get_submodule(name)
        assert isinstance(linear, nn.Linear)
        new = make(linear)
        new.load_state_dict(linear.state_dict())
        layer.set_submodule(name, new.to("cpu"))
    return layer


def four_bits(linear: nn.Linear) -> nn.Module:
    from bitsandbytes.nn import Linear4bit

    return Linear4bit(
        linear.in_features, linear.out_features, linear.bias is not None, compute_dtype=torch.float32, quant_type="nf4"
    )


def eight_bits(linear: nn.Linear) -> nn.Module:
    from bitsandbytes.nn import Linear8bitLt

    return Linear8bitLt(linear.in_features, linear.out_features, linear.bias is not None, has_fp16_weights=False)


def torchaos(layer: nn.Module, config: str) -> nn.Module:
    from torchao import quantization

    quantization.quantize_(layer, getattr(quantization, config)())
    return layer


WEIGHTS_ALONE: dict[str, Callable[[nn.Module], nn.Module]] = {
    "bitsandbytes, 4 bits": lambda layer: swapped(layer, four_bits),
    "torchao, int8": lambda layer: torchaos(layer, "Int8WeightOnlyConfig"),
}
FEATURES_TOO: dict[str, Callable[[nn.Module], nn.Module]] = {
    "quantize_dynamic": lambda layer: torch.ao.quantization.quantize_dynamic(layer, {nn.Linear}),
    "bitsandbytes, 8 bits": lambda layer: swapped(layer, eight_bits),
    "torchao, int8": lambda layer: torchaos(layer, "Int8DynamicActivationInt8WeightConfig"),
}
every_layer = pytest.mark.parametrize("name", ["none", "t5", *WITH_LINEAR])


def unpacked(layer: ProjectedAttention, quantized: nn.Module) -> ProjectedAttention:
    """The layer with the weights that its quantized Linears multiply with: what they make of the unit vectors."""
    for name in linears(layer):
        linear, packed = layer.get_submodule(name), quantized.get_submodule(name)
        assert isinstance(linear, nn.Linear) and type(getattr(packed, "weight", None)) is not nn.Parameter
        bias = 0.0 if linear.bias is None else linear.bias
        linear.weight = nn.Parameter((packed(torch.eye(linear.in_features)) - bias).T)
    return layer


@every_layer
@pytest.mark.parametrize("way", WEIGHTS_ALONE)
def test_quantized_weights(name: str, way: str) -> None:
    case = CASES[name]
    layer, x = case.small(), random_input().float()
    quantized = WEIGHTS_ALONE[way](copy.deepcopy(layer))
    with torch.no_grad():
        torch.testing.assert_close(case(quantized, x), case(unpacked(layer, quantized), x), rtol=1e-4, atol=1e-5)


@every_layer
@pytest.mark.parametrize("way", FEATURES_TOO)
def test_quantized_weights_and_features(name: str, way: str) -> None:
    case = CASES[name]
    layer, x = case.small(), random_input().float()
    quantized = FEATURES_TOO[way](copy.deepcopy(layer))
    with torch.no_grad():
        expected = case(unpacked(layer, quantized), x)
        assert (case(quantized, x) - expected).abs().max() <= FEATURES * expected.abs().max()
