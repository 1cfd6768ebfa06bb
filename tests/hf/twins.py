"""A model in float64 and its patched copy, and that both answer the same, attention weights among it."""

import copy
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor, nn

import relattn.hf
from tests.peers.cases.case import drawn
from tests.peers.compare import everything_in_float64

CLOSE: dict[str, float] = {"rtol": 1e-9, "atol": 1e-10}
FLOAT32: dict[str, float] = {"rtol": 1e-4, "atol": 1e-5}


def twins(model: nn.Module) -> tuple[Any, Any]:
    """(the original, the patched copy), parameters drawn anew."""
    model = drawn(model).double()
    twin = copy.deepcopy(model)
    relattn.hf.patch(twin)
    return model, twin


def assert_same(pair: Iterable[nn.Module], answer: Callable[[Any], Tensor | tuple[Tensor, ...]]) -> None:
    """answer(model) in float64 of both, and the gradient of its product with fixed numbers by every parameter.

    No gradient is one of zeros.
    """
    (theirs, their_gradients), (ours, our_gradients) = (_answered(model, answer) for model in pair)
    for found, expected in zip(ours, theirs, strict=True):
        torch.testing.assert_close(found, expected, **CLOSE)
    assert any(gradient.any() for gradient in their_gradients.values())
    for name, expected in their_gradients.items():
        torch.testing.assert_close(
            our_gradients[name], expected, rtol=1e-7, atol=1e-8, msg=lambda m, n=name: f"{n}: {m}"
        )


def assert_same_weights(model: Any, *inputs: Tensor, **keywords: Any) -> tuple[Any, Any]:
    """The attention weights of two layers, patched and not, where they are asked for, and else none.

    Returns the outputs, patched and not.
    """
    with torch.no_grad():
        expected = model(*inputs, **keywords, output_attentions=True)
        with relattn.hf.patched(model):
            found = model(*inputs, **keywords, output_attentions=True)
            assert model(*inputs, **keywords).attentions is None
    assert len(found.attentions) == len(expected.attentions) == 2
    for ours, theirs in zip(found.attentions, expected.attentions, strict=True):
        assert ours.shape == theirs.shape
        torch.testing.assert_close(ours, theirs, **FLOAT32)
    return found, expected


def _answered(
    model: nn.Module, answer: Callable[[Any], Tensor | tuple[Tensor, ...]]
) -> tuple[list[Tensor], dict[str, Tensor]]:
    with everything_in_float64():
        outputs = answer(model)
        listed = [outputs] if isinstance(outputs, Tensor) else list(outputs)
        total = sum((output * torch.linspace(-1, 1, output.numel()).view(output.shape)).sum() for output in listed)
        model.zero_grad()
        total.backward()
    gradients = {name: torch.zeros_like(p) if p.grad is None else p.grad for name, p in model.named_parameters()}
    return [output.detach() for output in listed], gradients
