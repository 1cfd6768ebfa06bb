"""A module under torch.autocast: half-precision outputs within their budget, gradients and parameters in float32."""

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tests.contract.calls import gradients, self_attention
from tests.contract.check import numpy_of, sum_lengths
from tests.contract.plain import plain_attention
from tests.contract.subject import Subject
from tests.ecosystem.layers import LONGEST, WIDTH, Attention, every_encoding
from tests.oracle import assert_within_budget, max_error

pytest_plugins = ["tests.contract.fresh"]


def plain_formula(module: Attention, subject: Subject, x: Tensor, dtype: torch.dtype) -> Tensor:
    """The module in plain PyTorch, all of it in `dtype`: what its error is measured by, and in float64 the truth."""
    layer = module.layer

    def projected(features: Tensor, projection: nn.Linear) -> Tensor:
        return F.linear(features, projection.weight.to(dtype), projection.bias.to(dtype))

    arrays = dict(subject.arrays)  # the encoding's parameters are among them
    for name, projection in (("query", layer.q_proj), ("key", layer.k_proj), ("value", layer.v_proj)):
        arrays[name] = projected(x.to(dtype), projection).unflatten(-1, (-1, layer.head_dim)).transpose(1, 2)
    return projected(plain_attention(subject, arrays, dtype).output.transpose(1, 2).flatten(2), layer.out_proj)


@pytest.mark.parametrize("dtype", ["bfloat16", pytest.param("float16", marks=pytest.mark.slow)])
@pytest.mark.parametrize("backend", ["auto", "tiled"])
@every_encoding
def test_autocast(name: str, backend: str, dtype: str, rng: np.random.Generator) -> None:
    half = getattr(torch, dtype)
    subject = self_attention(name, rng, length=LONGEST)
    module = Attention(subject, backend).float()
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
    terms = WIDTH + sum_lengths(subject)["output"] + module.layer.out_proj.in_features
    error = max_error(numpy_of(plain), numpy_of(truth))
    assert_within_budget(numpy_of(ours), numpy_of(truth), error, terms, dtype, "output")

    of_ours, of_plain, of_truth = (gradients((answer,), list(leaves.values())) for answer in (ours, plain, truth))
    terms += 2 * LONGEST * LONGEST * module.layer.num_heads
    for key, found, formula, exact in zip(leaves, of_ours, of_plain, of_truth, strict=True):
        assert found.dtype == leaves[key].dtype == torch.float32
        assert found.isfinite().all()
        if not key.endswith(("k_proj.bias", "key_proj.bias")):  # zero, for the softmax does not see what keys share
            error = max_error(numpy_of(formula), numpy_of(exact))
            assert_within_budget(numpy_of(found), numpy_of(exact), error, terms, dtype, f"gradient of {key}")
