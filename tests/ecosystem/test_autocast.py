"""A module under torch.autocast: half-precision outputs within their budget, gradients and parameters in float32."""

import math
from collections import defaultdict
from collections.abc import Callable, Iterator

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tests.contract.calls import MODULES, gradients, self_attention
from tests.contract.plain import plain_attention
from tests.contract.subject import Subject
from tests.ecosystem.layers import FEW, KINDS, LONGEST, WIDTH, Attention, attention_of

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


BACKENDS = ("auto", "blocks")
FORMULA = "the plain formula"


def errors(module: Attention, subject: Subject, half: torch.dtype) -> Iterator[tuple[str, str, float]]:
    """One draw: for the output and each gradient its name, who computed it (a backend or FORMULA), the squared error.

    Squares, so that those of several draws add up.
    """
    module.float()
    x = torch.randn(2, LONGEST, WIDTH)
    leaves = {"x": x, **dict(module.named_parameters())}
    with torch.no_grad():
        for leaf in leaves.values():
            leaf.copy_(leaf.to(half))  # all start from the same numbers
    x.requires_grad_()
    outputs = {FORMULA: plain_formula(module, subject, x, half)}
    for backend in BACKENDS:
        module.layer.backend = backend
        with torch.autocast("cpu", dtype=half):
            outputs[backend] = module(x)
        assert outputs[backend].dtype == half

    names, tensors = ("output", *leaves), list(leaves.values())
    truth = plain_formula(module, subject, x, torch.float64)
    exact = (truth, *gradients((truth,), tensors))
    for who, output in outputs.items():
        for key, found, true in zip(names, (output, *gradients((output,), tensors)), exact, strict=True):
            assert found.isfinite().all()
            assert who == FORMULA or key == "output" or found.dtype == leaves[key].dtype == torch.float32
            if not key.endswith(BIASES_OF_KEYS):
                yield key, who, float((found.double() - true).square().sum().detach())


def assert_errs_like_the_formula(draw: Callable[[], tuple[Attention, Subject]], half: torch.dtype) -> None:
    """Every backend errs at most twice as much as the plain formula, whose roundings are other draws of the same size.

    A tensor may have eight numbers, and a single draw of their errors a lucky size: DRAWS are added up.
    """
    squares: defaultdict[tuple[str, str], float] = defaultdict(float)
    for _ in range(DRAWS):
        for key, who, square in errors(*draw(), half):
            squares[key, who] += square
    for (key, who), ours in squares.items():
        plain = squares[key, FORMULA]
        assert math.sqrt(ours) <= 2.0 * math.sqrt(plain), f"{key} on {who}: {ours} over {plain}, squared"


@pytest.mark.one_in(3)
@pytest.mark.parametrize(
    ("name", "dtype"),
    [
        *(pytest.param(name, "bfloat16", marks=[] if name in FEW else pytest.mark.slow) for name in MODULES),
        *(pytest.param(name, "float16", marks=pytest.mark.slow) for name in KINDS),
    ],
)
def test_autocast(name: str, dtype: str, rng: np.random.Generator) -> None:
    def draw() -> tuple[Attention, Subject]:
        subject = self_attention(name, rng, length=LONGEST)
        return attention_of(subject, "auto"), subject

    assert_errs_like_the_formula(draw, getattr(torch, dtype))
