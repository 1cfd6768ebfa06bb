"""Derivatives that the kernels leave to PyTorch: second and third ones, and batched gradients."""

from collections.abc import Iterator

import numpy as np
import pytest
import torch
from torch import Tensor

from relattn import UnsupportedError, relative_attention
from relattn.equation.philox import kept_pairs
from tests.contract.axes import AXES_CASES
from tests.contract.cases import CASES
from tests.contract.check import gradients_of, numpy_of, sum_lengths
from tests.contract.places import on_a_grid
from tests.contract.plain import plain_attention
from tests.contract.settings import Setting
from tests.contract.subject import Subject, make_subject
from tests.oracle import assert_within_budget, max_error


def inputs() -> list[Tensor]:
    return [torch.randn(1, 2, 5, 4, requires_grad=True) for _ in range(3)]


def doubled(subject: Subject) -> dict[str, Tensor]:
    """Leaves of their own with the same numbers, in float64."""
    return {name: array.detach().double().requires_grad_() for name, array in subject.arrays.items()}


def derivatives(output: Tensor, lse: Tensor, arrays: dict[str, Tensor], orders: int) -> Iterator[dict[str, Tensor]]:
    """Of <output, sin> + <lse, cos>, and in turn of the sum of squares of all derivatives before."""
    total = output.sin().sum() + lse.cos().sum()
    for order in range(orders):
        found = torch.autograd.grad(
            total, list(arrays.values()), create_graph=order < orders - 1, allow_unused=True, materialize_grads=True
        )
        yield dict(zip(arrays, found, strict=True))
        total = sum((gradient.square().sum() for gradient in found), torch.zeros(()))


CONTIGUOUS = ("none", "relative", "shaw_per_head", "t5", "key_query", "terms_all")


@pytest.mark.one_in(4)
@pytest.mark.parametrize(
    ("case", "where"), [*((case, "contiguous") for case in CONTIGUOUS), ("shaw", "explicit"), ("everywhere", "a grid")]
)
def test_second_and_third_derivatives(case: str, where: str, rng: np.random.Generator) -> None:
    """With a float mask, whose derivative they take, too.

    A reverse pass makes every path of sums at most twice as long: it goes back along the path that was there. So the
    budget's `terms` double with the order.
    """
    mask = rng.normal(size=(1, 4, 9, 9))
    places = on_a_grid(("y", "x"), (2, 4), prefix_tokens=1, first=0, length=9) if where == "a grid" else {}
    setting = Setting(
        2, 4, 2, 9, 9, 8, 8, attn_mask=mask, key_position=rng.integers(0, 9, (2, 9)) if where == "explicit" else 0,
        axes={axis: (place, place) for axis, place in places.items()}, seed=int(rng.integers(2**32)),
    )  # fmt: skip
    subject = make_subject((CASES | AXES_CASES)[case], setting, "float32")
    arrays, terms = doubled(subject), sum_lengths(subject)
    exact = plain_attention(subject, arrays, torch.float64)
    plain = plain_attention(subject, subject.arrays, torch.float32)
    each = zip(
        derivatives(*subject.run("native"), subject.arrays, 3),
        derivatives(exact.output, exact.lse, arrays, 3),
        derivatives(plain.output, plain.lse, subject.arrays, 3),
        strict=True,
    )
    for order, (ours, truth, formula) in enumerate(each):
        for name in subject.arrays:
            oracle = numpy_of(truth[name])
            assert_within_budget(
                numpy_of(ours[name]), oracle, max_error(numpy_of(formula[name]), oracle),
                2**order * terms[f"gradient of {name}"], "float32", f"derivative {order + 1} by {name}",
            )  # fmt: skip


def test_batched_gradients(rng: np.random.Generator) -> None:
    """Each of them is the gradient of its own cotangent."""
    setting = Setting(1, 2, 2, 5, 5, 8, 8, seed=int(rng.integers(2**32)))
    subject = make_subject(CASES["shaw"], setting, "float32")
    cotangents = torch.randn(3, 1, 2, 5, 8)
    output = subject.run("native", return_lse=False)
    batched = torch.autograd.grad(output, list(subject.arrays.values()), cotangents, is_grads_batched=True)
    arrays, terms = doubled(subject), sum_lengths(subject)
    for n, cotangent in enumerate(cotangents):
        exact = plain_attention(subject, arrays, torch.float64)
        plain = plain_attention(subject, subject.arrays, torch.float32)
        given = numpy_of(cotangent), np.zeros(exact.lse.shape)
        truth = gradients_of(exact.output, None, arrays, given)
        formula = gradients_of(plain.output, None, subject.arrays, given)
        for name, found in zip(subject.arrays, batched, strict=True):
            oracle = numpy_of(truth[name])
            assert_within_budget(
                numpy_of(found[n]), oracle, max_error(numpy_of(formula[name]), oracle), terms[f"gradient of {name}"],
                "float32", f"gradient {n} by {name}",
            )  # fmt: skip


def test_batched_gradients_that_are_refused() -> None:
    given = inputs()
    output = relative_attention(*given, backend="blocks")
    with pytest.raises(UnsupportedError, match="'blocks' cannot run this: it takes no batched gradients"):
        torch.autograd.grad(output, given, torch.ones(3, *output.shape), is_grads_batched=True)


def drawn_factors(state: Tensor, rows: int, p: float) -> Tensor:
    """What dropout of a call multiplies the weights [B, H, rows, rows] of `inputs` with, torch's generator being so."""
    torch.set_rng_state(state)
    seed = int(torch.randint(2**63 - 1, ()))
    kept = kept_pairs(seed, 1 - p, torch.arange(2), slice(0, rows), slice(0, rows), torch.float64)
    return kept[None] / (1 - p)


@pytest.mark.parametrize("window", [None, (1, 0)], ids=["full", "window"])
def test_with_dropout_a_second_derivative_is_that_of_the_weights_that_were_kept(window: tuple[int, int] | None) -> None:
    """The formula in float64, differentiated twice by PyTorch, with the factors that the forward pass has drawn.

    Queries 3 to 4 of the windowed call see keys from 2 on alone, so that the recomputation leaves the first keys out.
    """
    given, state = inputs(), torch.get_rng_state()
    part = slice(0, 5) if window is None else slice(3, 5)
    query_position = {} if window is None else {"query_position": 3}
    query = given[0][:, :, part]
    output = relative_attention(query, *given[1:], dropout_p=0.5, window=window, backend="native", **query_position)
    firsts = torch.autograd.grad(output.sin().sum(), given, create_graph=True)
    found = torch.autograd.grad(sum((first.square().sum() for first in firsts), torch.zeros(())), given)

    exact = [one.detach().double().requires_grad_() for one in given]
    scores = exact[0][:, :, part] @ exact[1].transpose(-2, -1) / 2
    rows = torch.arange(5)[part, None]
    if window is not None:
        scores = scores.masked_fill((rows - torch.arange(5) > 1) | (rows < torch.arange(5)), -torch.inf)
    weights = scores.softmax(-1) * drawn_factors(state, 5, 0.5)[:, :, : query.shape[2]]
    firsts = torch.autograd.grad((weights @ exact[2]).sin().sum(), exact, create_graph=True)
    wanted = torch.autograd.grad(sum((first.square().sum() for first in firsts), torch.zeros(())), exact)
    for one, other in zip(found, wanted, strict=True):
        torch.testing.assert_close(one.double(), other, rtol=1e-4, atol=1e-4)


def test_with_dropout_batched_gradients_are_those_of_one_call_each() -> None:
    given = inputs()
    output = relative_attention(*given, backend="native", dropout_p=0.5)
    cotangents = torch.randn(3, *output.shape)
    batched = torch.autograd.grad(output, given, cotangents, is_grads_batched=True, retain_graph=True)
    for n, cotangent in enumerate(cotangents):
        single = torch.autograd.grad(output, given, cotangent, retain_graph=True)
        for one, other in zip(batched, single, strict=True):
            torch.testing.assert_close(one[n], other)
