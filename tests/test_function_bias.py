"""FunctionBias: what the function gets and how often, and what it may be made of."""

import copy

import pytest
import torch
from torch import Tensor, nn

from relattn import AlibiBias, FunctionBias, attention_weights, relative_attention
from relattn.nn import KVCache, RelativeMultiheadAttention
from tests.contract.cases import Network

HEADS, WIDTH = 4, 8


class Recorder:
    """-|d| / 4 for every head, and every tensor of offsets that it was called with."""

    def __init__(self) -> None:
        self.calls: list[Tensor] = []

    def __call__(self, offsets: Tensor) -> Tensor:
        self.calls.append(offsets)
        return (-offsets.abs() / 4).expand(HEADS, -1)


def call(encoding, queries: int = 5, keys: int = 7, dtype: torch.dtype = torch.float32, **keywords) -> Tensor:
    query, key = torch.randn(1, HEADS, queries, WIDTH, dtype=dtype), torch.randn(1, HEADS, keys, WIDTH, dtype=dtype)
    return relative_attention(query, key, key, encoding=encoding, **keywords)


@pytest.mark.parametrize("backend", ["auto", "dense", "blocks", "native", "reference"])
@pytest.mark.parametrize(
    ("keywords", "first", "last"),
    [
        ({}, -4, 6),
        ({"is_causal": True}, -4, 0),
        ({"window": (2, 1)}, -2, 1),
        ({"query_position": 100, "is_causal": True}, -104, -94),
        ({"query_position": torch.tensor([9, 3, 5, 4, 20])}, -20, 3),
    ],
    ids=["full", "causal", "window", "start", "explicit"],
)
def test_it_is_called_once_on_the_span(backend: str, keywords: dict, first: int, last: int) -> None:
    function = Recorder()
    call(FunctionBias(function, HEADS), backend=backend, **keywords)
    (offsets,) = function.calls
    assert offsets.tolist() == list(range(first, last + 1))


@pytest.mark.parametrize(
    ("dtype", "given"),
    [
        (torch.float64, torch.float64), (torch.float32, torch.float32), (torch.bfloat16, torch.float32),
        (torch.float16, torch.float32),
    ],
)  # fmt: skip
def test_the_dtype_of_the_offsets(dtype: torch.dtype, given: torch.dtype) -> None:
    """Of distances beyond 256 bfloat16 holds some only."""
    function = Recorder()
    assert call(FunctionBias(function, HEADS), keys=300, dtype=dtype).dtype == dtype
    (offsets,) = function.calls
    assert offsets.dtype == given
    assert offsets.tolist() == list(range(-4, 300))


def test_under_autocast_the_offsets_are_float32() -> None:
    function = Recorder()
    with torch.autocast("cpu", torch.bfloat16):
        assert call(FunctionBias(function, HEADS)).dtype == torch.bfloat16
    assert function.calls[0].dtype == torch.float32


def test_alibi_as_a_function() -> None:
    alibi = AlibiBias(HEADS, slopes=[0.25] * HEADS)
    query, key = torch.randn(2, 1, HEADS, 6, WIDTH).unbind(0)
    expected = attention_weights(query, key, key, encoding=alibi)
    torch.testing.assert_close(attention_weights(query, key, key, encoding=FunctionBias(Recorder(), HEADS)), expected)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_a_module_in_half_precision_computes_in_float32(dtype: torch.dtype) -> None:
    """Its numbers are the half-precision ones; what it makes of them is not rounded on the way."""
    module = Network(HEADS).to(dtype)
    wide = copy.deepcopy(module).float()
    inputs = torch.randn(3, 1, HEADS, 300, WIDTH, dtype=dtype).unbind(0)
    answers = []
    for function in (module, wide):
        output = relative_attention(*inputs, encoding=FunctionBias(function, HEADS))
        gradients = torch.autograd.grad(output.float().square().sum(), list(function.parameters()))
        answers.append([output, *(gradient.to(dtype) for gradient in gradients)])
    torch.testing.assert_close(answers[0], answers[1], rtol=0.0, atol=0.0)


def test_a_buffer_in_half_precision_is_widened_too() -> None:
    class Scaled(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("widths", torch.tensor([[1.0], [2.0], [3.0], [4.0]]))

        def forward(self, offsets: Tensor) -> Tensor:
            assert self.widths.dtype == torch.float32
            return -offsets.abs() / self.widths

    encoding = FunctionBias(Scaled(), HEADS).bfloat16()
    assert encoding.function.widths.dtype == torch.bfloat16
    call(encoding, dtype=torch.bfloat16)


def test_a_module_is_registered_and_trains() -> None:
    encoding = FunctionBias(Network(HEADS), HEADS)
    names = [f"function.{layer}.{part}" for layer in ("first", "last") for part in ("weight", "bias")]
    assert list(encoding.state_dict()) == names
    before = {name: parameter.clone() for name, parameter in encoding.named_parameters()}
    optimizer = torch.optim.SGD(encoding.parameters(), lr=1.0)
    call(encoding).square().sum().backward()
    optimizer.step()
    moved = [name for name, parameter in encoding.named_parameters() if (parameter - before[name]).abs().max() > 1e-4]
    assert moved == names[:-1]  # a number added to a head's every bias leaves the softmax as it is


def test_what_a_function_closes_over_gets_a_gradient() -> None:
    slopes = torch.rand(HEADS, 1, requires_grad=True)
    call(FunctionBias(lambda offsets: -slopes * offsets.abs(), HEADS)).sum().backward()
    assert slopes.grad is not None
    assert slopes.grad.abs().min() > 0


@torch.no_grad()
def test_a_decoding_step_asks_for_the_offsets_of_its_token() -> None:
    function = Recorder()
    layer, cache = RelativeMultiheadAttention(HEADS * WIDTH, HEADS, FunctionBias(function, HEADS)), KVCache()
    x = torch.randn(1, 6, HEADS * WIDTH)
    pieces = [layer(piece, is_causal=True, cache=cache) for piece in x.split([4, 1, 1], dim=1)]
    assert [(int(d[0]), int(d[-1])) for d in function.calls] == [(-3, 0), (-4, 0), (-5, 0)]
    torch.testing.assert_close(torch.cat(pieces, dim=1), layer(x, is_causal=True))


def test_how_it_prints() -> None:
    assert repr(FunctionBias(torch.cos, 2)) == "FunctionBias(function=cos, num_heads=2)"
    assert repr(FunctionBias(Recorder(), 2)) == "FunctionBias(function=Recorder, num_heads=2)"
    joint = FunctionBias(torch.cos, 2, axes=("y", "x"))
    assert repr(joint) == "FunctionBias(function=cos, num_heads=2, axes=('y', 'x'))"
    assert repr(FunctionBias(nn.Identity(), 2)) == "FunctionBias(\n  num_heads=2\n  (function): Identity()\n)"
