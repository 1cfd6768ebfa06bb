"""PyTorch's own samples of scaled_dot_product_attention: the same answers and gradients, by every backend.

The samples are those that PyTorch tests its operator with (torch.testing._internal, which needs expecttest): three and
four axes, mixed too, masks, causality and dropout. The truth is PyTorch's attention in float64; its error in the
sample's own dtype sets the budget (tests/oracle/budget.py).
"""

import math
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from relattn import UnsupportedError, attention_weights, relative_attention
from tests import seeds
from tests.contract.check import accumulation_eps, sum_lengths
from tests.contract.plain import magnitudes, plain_attention
from tests.contract.settings import Setting
from tests.contract.subject import Subject
from tests.oracle.budget import assert_within_budget, max_error
from tests.oracle.equation import Answer

BACKENDS = ("auto", "sdpa", "dense", "native", "blocks", "reference")
DTYPES = (torch.float32, torch.float64, torch.bfloat16, torch.float16)
NAME = "nn.functional.scaled_dot_product_attention"
NAMES = ("output", "query", "key", "value", "attn_mask")


Sample = tuple[tuple[Tensor, ...], dict[str, Any]]
"""(query, key, value) and keywords."""


@pytest.fixture(scope="session", autouse=True)
def _operators_imported() -> None:
    """PyTorch's list of all operators: its import takes seconds, and draws, once in a process."""
    seeds.start_all("the list of all operators")
    import torch.testing._internal.common_methods_invocations  # noqa: F401


def samples(dtype: torch.dtype) -> list[Sample]:
    """Every sample of a dtype."""
    from torch.testing._internal.common_methods_invocations import op_db

    (operator,) = (op for op in op_db if op.name == NAME)
    drawn = operator.sample_inputs("cpu", dtype, requires_grad=True)
    return [((sample.input, *sample.args), sample.kwargs) for sample in drawn]


def with_gradients(function: Any, inputs: tuple[Tensor, ...], keywords: dict[str, Any]) -> list[Tensor]:
    """The output, and the gradients of everything that is differentiable in a sample."""
    seeds.start_torch(7)
    output = function(*inputs, **keywords)
    leaves = [*inputs, *(t for t in keywords.values() if isinstance(t, Tensor) and t.requires_grad)]
    return [output, *torch.autograd.grad(output, leaves, cotangent_of(output))]


def in_float64(inputs: tuple[Tensor, ...], keywords: dict[str, Any]) -> tuple[tuple[Tensor, ...], dict[str, Any]]:
    """The same numbers in float64: the truth."""

    def widened(given: Any) -> Any:
        return given.detach().double().requires_grad_() if isinstance(given, Tensor) else given

    return tuple(map(widened, inputs)), {name: widened(given) for name, given in keywords.items()}


class Size(NamedTuple):
    """What the budget asks of a tensor: how many products its longest sum adds, and their magnitude."""

    terms: int
    magnitude: float


def sizes_of(inputs: tuple[Tensor, ...], keywords: dict[str, Any], dtype: str) -> list[Size]:
    """Of the output and each gradient, by the contract's own rules, with one batch axis.

    Where a batch axis broadcasts a gradient adds up over it.
    """
    batch = torch.broadcast_shapes(*(tensor.shape[:-3] for tensor in inputs))
    wide = [tensor.detach().double() for tensor in inputs]
    folded = [tensor.expand(*batch, *tensor.shape[-3:]).reshape(-1, *tensor.shape[-3:]) for tensor in wide]
    query, key, value = folded
    arrays = dict(zip(NAMES[1:], folded, strict=False))
    mask = keywords.get("attn_mask")
    if mask is not None:
        arrays["attn_mask"] = mask.detach().double().reshape((1,) * (4 - mask.dim()) + mask.shape)
    setting = Setting(
        *query.shape[:2], key.shape[1], query.shape[2], key.shape[2], query.shape[3], value.shape[3],
        is_causal=keywords["is_causal"], attn_mask=None if mask is None else numpy_of(arrays["attn_mask"]),
    )  # fmt: skip
    subject = Subject(setting, arrays, [])
    plain = plain_attention(subject, arrays, torch.float64)
    answer = Answer(*map(numpy_of, plain))
    cotangents = numpy_of(cotangent_of(plain.output)), np.zeros_like(answer.lse)
    sizes, terms = magnitudes(subject, answer, accumulation_eps(dtype), cotangents), sum_lengths(subject)
    times = max(len(folded[0]) // max(math.prod(tensor.shape[:-3]), 1) for tensor in inputs)
    names = ["output", *(f"gradient of {name}" for name in arrays)]
    return [Size(times * terms[name], times * sizes[name]) for name in names]


def cotangent_of(output: Tensor) -> Tensor:
    """Numbers between -1 and 1, the gradient by the output."""
    return torch.linspace(-1.0, 1.0, output.numel()).reshape(output.shape).to(output.dtype)


def numpy_of(tensor: Tensor) -> np.ndarray:
    """In float64."""
    return tensor.detach().double().numpy()


@pytest.mark.one_in(12)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("backend", BACKENDS)
def test_answers_and_gradients_are_pytorchs(backend: str, dtype: torch.dtype) -> None:
    if backend == "native" and dtype == torch.float64:
        inputs, keywords = samples(dtype)[0]
        with pytest.raises(UnsupportedError, match="'native' cannot run this: it computes in float32"):
            relative_attention(*inputs, **keywords, backend=backend)
    else:
        drawn = samples(dtype)
        assert len(drawn) >= 25
        check_samples(backend, drawn, dtype)


def check_samples(backend: str, drawn: list[Sample], dtype: torch.dtype) -> None:
    """Answers and gradients of every sample by a backend are PyTorch's."""
    for number, (inputs, keywords) in enumerate(drawn):
        if backend not in ("sdpa", "auto"):  # PyTorch's kernels drop the same weights from one seed; ours draw theirs
            keywords = keywords | {"dropout_p": 0.0}
        ours = with_gradients(relative_attention, inputs, {**keywords, "backend": backend})
        theirs = with_gradients(F.scaled_dot_product_attention, inputs, keywords)
        p = keywords["dropout_p"]  # where weights are dropped PyTorch's answer from the same seed is the truth
        exact = theirs if p else with_gradients(F.scaled_dot_product_attention, *in_float64(inputs, keywords))
        sizes = sizes_of(inputs, keywords, str(dtype)[6:])
        for name, size, our, their, truth in zip(NAMES, sizes, ours, theirs, exact, strict=False):
            assert our.dtype == their.dtype and our.shape == their.shape
            their_error = max_error(numpy_of(their), numpy_of(truth))
            assert_within_budget(
                numpy_of(our), numpy_of(truth), their_error, size.terms, str(dtype)[6:], f"sample {number}, {name}",
                magnitude=size.magnitude / (1.0 - p),
            )  # fmt: skip


@pytest.mark.parametrize("backend", ["dense", "blocks", "reference"])
def test_dropout_drops_or_scales_each_weight(backend: str) -> None:
    with_dropout = [sample for sample in samples(torch.float64) if sample[1].get("dropout_p")]
    assert with_dropout
    for inputs, keywords in with_dropout:
        check_dropout(backend, inputs, keywords)


def check_dropout(backend: str, inputs: tuple[Tensor, ...], keywords: dict[str, Any]) -> None:
    """With value = 1 the output is the weights themselves; with any other it is their product, from the same seed."""
    query, key, value = inputs
    p = keywords["dropout_p"]
    keywords = keywords | {"backend": backend}
    length = key.shape[-2]

    def dropped(value: Tensor) -> Tensor:
        seeds.start_torch(3)
        return relative_attention(query, key, value, **keywords)

    one = torch.eye(length, dtype=value.dtype).expand(*value.shape[:-2], length, length)
    weights = dropped(one)
    whole = attention_weights(query, key, value, is_causal=keywords["is_causal"])
    kept = weights != 0
    torch.testing.assert_close(weights, torch.where(kept, whole / (1.0 - p), 0.0))
    share = kept[whole > 0].double().mean()  # binomial: four standard deviations
    assert abs(share - (1.0 - p)) < 4.0 * (p * (1.0 - p) / (whole > 0).sum()) ** 0.5
    torch.testing.assert_close(dropped(value), weights @ value)
