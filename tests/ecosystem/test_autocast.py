"""A module under torch.autocast: half-precision outputs within their budget, gradients and parameters in float32."""

import math
from collections import defaultdict
from collections.abc import Callable, Iterator

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tests.contract.calls import gradients, self_attention
from tests.contract.plain import plain_attention
from tests.contract.subject import Subject
from tests.ecosystem.layers import LONGEST, WIDTH, Attention, attention_of, every_encoding

pytest_plugins = ["tests.contract.fresh"]

DRAWS = 16
BIASES_OF_KEYS = ("k_proj.bias", "key_proj.bias", "linear_k.bias")
"""Their gradients are zero, for the softmax does not see what keys share."""


def plain_formula(module: Attention, subject: Subject, x: Tensor, dtype: torch.dtype) -> Tensor:
    """The module in plain PyTorch, all of it in `dtype`: what its error is measured by, and in float64 the truth."""
    layer = module.layer

    def projected(features: Tensor, projection: nn.Linear) -> Tensor:
        return F.linear(features, projection.weight.to(dtype), projection.bias.to(dtype))

    arrays = dict(subject.arrays)  # the encoding's parameters are among them
    for name, projection in (("query", layer.q_proj), ("key", layer.k_proj), ("value", layer.v_proj)):
        arrays[name] = projected(x.to(dtype), projection).unflatten(-1, (-1, layer.head_dim)).transpose(1, 2)
    return projected(plain_attention(subject, arrays, dtype).output.transpose(1, 2).flatten(2), layer.out_proj)


def errors(module: Attention, subject: Subject, half: torch.dtype) -> Iterator[tuple[str, float, float]]:
    """One draw: for the output and each gradient, its name and the squared errors of the module and the plain formula.

    Squares, so that those of several draws add up.
    """
    module.float()
    x = torch.randn(2, LONGEST, WIDTH)
    leaves = {"x": x, **dict(module.named_parameters())}
    with torch.no_grad():
        for leaf in leaves.values():
            leaf.copy_(leaf.to(half))  # all start from the same numbers
    x.requires_grad_()
    with torch.autocast("cpu", dtype=half):
        ours = module(x)
    assert ours.dtype == half
    plain, truth = (plain_formula(module, subject, x, kind) for kind in (half, torch.float64))

    names, tensors = ("output", *leaves), list(leaves.values())
    answers = ((answer, *gradients((answer,), tensors)) for answer in (ours, plain, truth))
    for key, found, formula, exact in zip(names, *answers, strict=True):
        assert found.isfinite().all()
        assert key == "output" or found.dtype == leaves[key].dtype == torch.float32
        if not key.endswith(BIASES_OF_KEYS):
            squares = [float((one.double() - exact).square().sum().detach()) for one in (found, formula)]
            yield key, squares[0], squares[1]


def assert_errs_like_the_formula(draw: Callable[[], tuple[Attention, Subject]], half: torch.dtype) -> None:
    """The module errs at most twice as much as the plain formula, whose roundings are other draws of the same size.

    A tensor may have eight numbers, and a single draw of their errors a lucky size: DRAWS are added up.
    """
    ours, plain = defaultdict(float), defaultdict(float)
    for _ in range(DRAWS):
        for key, error, error_of_formula in errors(*draw(), half):
            ours[key] += error
            plain[key] += error_of_formula
    for key in ours:
        assert math.sqrt(ours[key]) <= 2.0 * math.sqrt(plain[key]), f"{key}: {ours[key]} over {plain[key]}, squared"


@pytest.mark.parametrize("dtype", ["bfloat16", pytest.param("float16", marks=pytest.mark.slow)])
@pytest.mark.parametrize("backend", ["auto", "tiled"])
@every_encoding
def test_autocast(name: str, backend: str, dtype: str, rng: np.random.Generator) -> None:
    def draw() -> tuple[Attention, Subject]:
        subject = self_attention(name, rng, length=LONGEST)
        return attention_of(subject, backend), subject

    assert_errs_like_the_formula(draw, getattr(torch, dtype))
