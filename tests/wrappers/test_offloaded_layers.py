"""accelerate's offloading of relattn's own layers: the same numbers and gradients as where the weights stay."""

from collections.abc import Callable
from pathlib import Path

import accelerate
import pytest
import torch
from torch import Tensor, nn

import relattn
from relattn.nn import KVCache, RelativeMultiheadAttention
from tests.bad_input.refusal import refused
from tests.wrappers.layers import CASES, DIM, HEADS, LENGTH, Case, random_input

pytestmark = pytest.mark.wrappers
CPU = torch.device("cpu")


def every_second(layer: nn.Module) -> dict[str, str]:
    names = [name for name, _ in layer.named_children()]
    own = [name for name, _ in layer.named_parameters(recurse=False)]
    return {name: ("disk" if number % 2 else "cpu") for number, name in enumerate(names)} | dict.fromkeys(own, "disk")


OFFLOADS: dict[str, Callable[[nn.Module, Path], object]] = {
    "cpu_offload": lambda layer, folder: accelerate.cpu_offload(layer, execution_device=CPU),
    "disk_offload": lambda layer, folder: accelerate.disk_offload(layer, str(folder), execution_device=CPU),
    "dispatch_model": lambda layer, folder: accelerate.dispatch_model(
        layer, every_second(layer), main_device="cpu", offload_dir=str(folder), force_hooks=True
    ),
}


def answer(case: Case, layer: nn.Module, x: Tensor) -> tuple[Tensor, Tensor]:
    """The output, and the gradient of the sum of its squares by x."""
    x = x.clone().requires_grad_()
    output = case(layer, x)
    (gradient,) = torch.autograd.grad(output.square().sum(), x)
    return output.detach(), gradient


@pytest.mark.parametrize("offload", OFFLOADS)
@pytest.mark.parametrize("name", CASES)
def test_the_same_bits(name: str, offload: str, tmp_path: Path) -> None:
    case, x = CASES[name], random_input()
    layer = case.layer()
    expected = answer(case, layer, x)
    OFFLOADS[offload](layer, tmp_path)
    assert any(parameter.is_meta for parameter in layer.parameters())
    for found, right in zip(answer(case, layer, x), expected, strict=True):
        assert torch.equal(found, right)


@pytest.mark.parametrize("name", [name for name in CASES if not CASES[name].keywords])
def test_decoding(name: str) -> None:
    """The keys of a cache are prepared and kept under offloading, too."""
    layer, x = CASES[name].layer(), random_input()

    def decoded() -> Tensor:
        cache = KVCache()
        with torch.no_grad():
            return torch.cat([layer(x[:, :4], is_causal=True, cache=cache), layer(x[:, 4:5], cache=cache)], 1)

    expected = decoded()
    accelerate.cpu_offload(layer, execution_device=CPU)
    assert torch.equal(decoded(), expected)


class Scaled(relattn.RelativeEncoding):
    """Keys times a parameter: `prepare_keys` reads it."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.tensor(3.0))

    def prepare_keys(self, key: Tensor, key_position: object) -> Tensor:
        return key * self.scale

    def terms(self, query: Tensor, key: Tensor, positions: object) -> relattn.ScoreTerms:
        return relattn.ScoreTerms()


@pytest.mark.parametrize("axis", ["sequence", "time"])
def test_an_encoding_that_prepares_keys_by_a_parameter(axis: str) -> None:
    encoding = Scaled() if axis == "sequence" else Scaled().on(axis)
    where = {} if axis == "sequence" else {"time": torch.arange(LENGTH)}
    keywords = dict.fromkeys(("query_position", "key_position"), where) if where else {}
    case = Case(lambda: RelativeMultiheadAttention(DIM, HEADS, encoding), keywords)
    layer, x = case.layer(), random_input()
    expected = answer(case, layer, x)
    accelerate.cpu_offload(layer, execution_device=CPU)
    for found, right in zip(answer(case, layer, x), expected, strict=True):
        assert torch.equal(found, right)


def test_a_function_of_half_precision_is_refused() -> None:
    """Its numbers come too late to be widened."""
    layer = CASES["function"].make().to(torch.bfloat16)
    accelerate.cpu_offload(layer, execution_device=CPU)
    said = (
        "FunctionBias function.mlp.0.weight: got torch.bfloat16 on meta, where offloading leaves it until the function "
        "runs, too late to be widened; expected float32; convert the function with .float() before the model is "
        "offloaded"
    )
    with refused(relattn.UnsupportedError, said):
        CASES["function"](layer, random_input().to(torch.bfloat16))
