"""Adapters on relattn's own layers, and PyTorch's own ways to put another tensor in the place of a parameter."""

import copy

import pytest
import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn.utils import parametrize

from relattn.nn.projected import ProjectedAttention
from tests.wrappers.layers import CASES, WITH_LINEAR, Case, assert_same_sums, linears, random_input

pytestmark = pytest.mark.wrappers


def called(case: Case, layer: ProjectedAttention, tensors: dict[str, Tensor], x: Tensor) -> Tensor:
    return functional_call(layer, tensors, (x,), dict(case.keywords))


@pytest.mark.parametrize("name", ["none", "t5", *WITH_LINEAR])
def test_lora_on_every_linear(name: str) -> None:
    """Output and gradients are those of W + B A; merged, the layer has its own names again."""
    from peft import LoraConfig, get_peft_model

    case, x = CASES[name], random_input()
    layer = case.layer()
    targets = linears(layer)
    config = LoraConfig(r=2, lora_alpha=6, target_modules=targets, init_lora_weights=False)
    adapted = get_peft_model(copy.deepcopy(layer), config)
    adapters = {key: value for key, value in adapted.named_parameters() if "lora_" in key}
    assert len(adapters) == 2 * len(targets)
    output = case(adapted, x)
    gradients = torch.autograd.grad(output.square().sum(), list(adapters.values()))

    leaves = {key: value.detach().clone().requires_grad_() for key, value in adapters.items()}
    weights = {}
    for target in targets:
        a, b = (leaves[f"base_model.model.{target}.lora_{one}.default.weight"] for one in "AB")
        weights[f"{target}.weight"] = layer.get_parameter(f"{target}.weight") + 3.0 * (b @ a)
    expected = called(case, layer, weights, x)
    assert_same_sums(output, expected)
    for found, right in zip(
        gradients, torch.autograd.grad(expected.square().sum(), list(leaves.values())), strict=True
    ):
        assert_same_sums(found, right)
        assert right.abs().max() > 1e-3
    merged = adapted.merge_and_unload()
    assert_same_sums(case(merged, x), expected)
    assert merged.state_dict().keys() == layer.state_dict().keys()


@pytest.mark.parametrize("name", CASES)
def test_every_parameter_may_be_parametrized(name: str) -> None:
    """Twice the parameter, and the gradient of the original."""

    class Twice(nn.Module):
        def forward(self, parameter: Tensor) -> Tensor:
            return 2.0 * parameter

    case, x = CASES[name], random_input()
    layer = case.layer()
    names = [key for key, _ in layer.named_parameters()]
    doubled = {key: 2.0 * value for key, value in layer.named_parameters()}
    expected = called(case, layer, doubled, x)
    gradients = torch.autograd.grad(expected.square().sum(), list(layer.parameters()))
    for key in names:
        owner, _, short = key.rpartition(".")
        parametrize.register_parametrization(layer.get_submodule(owner), short, Twice())
    output = case(layer, x)
    assert_same_sums(output, expected)
    originals = [layer.get_parameter(_original(key)) for key in names]
    for found, right in zip(torch.autograd.grad(output.square().sum(), originals), gradients, strict=True):
        assert_same_sums(found, right)


def _original(key: str) -> str:
    owner, _, short = key.rpartition(".")
    return f"{owner}.parametrizations.{short}.original".removeprefix(".")


def test_a_projection_is_called_once() -> None:
    """A parametrization with a state, as spectral_norm, may not be read beside the call."""

    class Counted(nn.Module):
        calls = 0

        def forward(self, parameter: Tensor) -> Tensor:
            self.calls += 1
            return parameter

    layer = CASES["transformer_xl"].layer()
    counted = [Counted() for _ in linears(layer)]
    for name, one in zip(linears(layer), counted, strict=True):
        parametrize.register_parametrization(layer.get_submodule(name), "weight", one, unsafe=True)
    layer(random_input())
    assert [one.calls for one in counted] == [1] * len(counted)


@pytest.mark.parametrize("name", ["t5", "transformer_xl", "disentangled"])
def test_tied_weights(name: str) -> None:
    """Two layers with one encoding, and one weight for queries and keys: the gradients of both add up."""
    case, x = CASES[name], random_input()
    first, second = case.layer(), case.layer()
    apart = copy.deepcopy(nn.ModuleList([first, second]))
    second.encoding = first.encoding
    second.k_proj.weight = first.q_proj.weight
    apart[1].load_state_dict(second.state_dict())
    (case(first, x) + case(second, x)).square().sum().backward()
    (case(apart[0], x) + case(apart[1], x)).square().sum().backward()
    there = dict(apart.named_parameters())
    for key, parameter in first.named_parameters():
        expected = there[f"0.{key}"].grad
        if key.startswith("encoding."):
            expected = expected + there[f"1.{key}"].grad
        if key == "q_proj.weight":
            expected = expected + there["1.k_proj.weight"].grad
        assert_same_sums(parameter.grad, expected)
