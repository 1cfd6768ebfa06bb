"""The comparison that the whole suite is made of: a backend's answers and gradients against the float64 oracle."""

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import pytest
import torch
from torch import Tensor

from tests import seeds
from tests.contract.plain import magnitudes, plain_attention
from tests.contract.subject import AXISLESS, Subject
from tests.oracle import Answer, assert_within_budget, complex_step_gradients, max_error
from tests.oracle.budget import EPS


def numpy_of(tensor: Tensor) -> np.ndarray:
    """A tensor's numbers in float64."""
    return tensor.detach().double().cpu().numpy()


def accumulation_eps(dtype: str) -> float:
    """The eps that sums are made with."""
    return EPS["float64" if dtype == "float64" else "float32"]


def sum_lengths(subject: Subject) -> dict[str, int]:
    """How many products the longest sum behind an element of each answer and gradient adds, with the sums inside it.

    A score adds the widths of its dot products and a handful of terms; an output adds a score and a row of weights. The
    gradient by a query or a key crosses an output, its own row or column of pairs (times the heads that share it), and
    the values' width; a table's row, or a mask's element, may meet every pair.
    """
    s = subject.setting
    score = sum(array.shape[-1] for name, array in subject.arrays.items() if name not in ("value", *AXISLESS)) + 7
    output = score + s.key_length
    pairs = s.batch * s.num_heads * s.query_length * s.key_length
    back = output + subject.arrays["value"].shape[-1]
    lengths = {"output": output, "lse": output, "weights": output}
    for name in subject.arrays:
        if name in ("query", "terms.query", "terms.relative_query"):
            own = s.key_length
        elif name in ("key", "value", "terms.key"):
            own = s.query_length * (s.num_heads // s.num_kv_heads)
        else:
            own = pairs
        lengths[f"gradient of {name}"] = back + own
    return lengths


def gradients_of(
    output: Tensor, lse: Tensor | None, arrays: dict[str, Tensor], cotangents: tuple[np.ndarray, np.ndarray]
) -> dict[str, Tensor]:
    """d (<cO, output> + <cL, lse>) / d array for every array, zero for one that takes no part."""
    answers = [output] if lse is None else [output, lse]
    weights = [torch.from_numpy(c).to(answer) for c, answer in zip(cotangents, answers, strict=False)]
    found = torch.autograd.grad(answers, list(arrays.values()), weights, allow_unused=True, materialize_grads=True)
    return dict(zip(arrays, found, strict=True))


def draw_cotangents(subject: Subject, answer: Answer, dtype: str) -> tuple[np.ndarray, np.ndarray]:
    """Random weights of output and lse, as `dtype` and the dtype of the scores hold them."""
    rng = seeds.generator(subject.setting.seed, "cotangents")
    of_output = torch.from_numpy(rng.normal(size=answer.output.shape)).to(getattr(torch, dtype))
    of_lse = torch.from_numpy(rng.normal(size=answer.lse.shape)).to(torch.promote_types(of_output.dtype, torch.float32))
    return numpy_of(of_output), numpy_of(of_lse)


class Truth(NamedTuple):
    """What a call's answers are, and a function that gives every gradient for cotangents of output and lse."""

    answer: Answer
    gradients: Callable[[tuple[np.ndarray, np.ndarray]], dict[str, np.ndarray]]


def by_oracle(subject: Subject) -> Truth:
    """The oracle, and complex-step derivatives of it: one evaluation for every number that goes in."""
    numbers = subject.numbers()
    return Truth(
        subject.oracle(numbers), lambda cotangents: complex_step_gradients(subject.oracle, numbers, cotangents)
    )


def by_formula(subject: Subject) -> Truth:
    """The plain formula in float64, which `test_plain` holds to the oracles: for calls with too many numbers."""
    arrays = {name: array.detach().double().requires_grad_() for name, array in subject.arrays.items()}
    plain = plain_attention(subject, arrays, torch.float64)

    def gradients(cotangents: tuple[np.ndarray, np.ndarray]) -> dict[str, np.ndarray]:
        found = gradients_of(plain.output, plain.lse, arrays, cotangents)
        return {name: numpy_of(gradient) for name, gradient in found.items()}

    return Truth(Answer(*map(numpy_of, plain)), gradients)


class Wanted(NamedTuple):
    """One answer or gradient: its numbers, and what its budget is made of (see `assert_within_budget`)."""

    exact: np.ndarray
    plain_error: float
    terms: int
    magnitude: float


class Expected(NamedTuple):
    """What every backend must give for a call: each answer and gradient, and the gradients' weights or None."""

    wanted: dict[str, Wanted]
    cotangents: tuple[np.ndarray, np.ndarray] | None


def expect(
    subject: Subject,
    dtype: str,
    *,
    gradients: bool = True,
    return_lse: bool = True,
    truth: Callable[[Subject], Truth] = by_oracle,
) -> Expected:
    """The truth of a call, and the error of the plain formula in its dtype, both on the CPU."""
    answer, exact_gradients = truth(subject)
    cotangents = draw_cotangents(subject, answer, dtype) if gradients else None
    if cotangents is not None and not return_lse:
        cotangents = cotangents[0], np.zeros_like(cotangents[1])

    plain = plain_attention(subject, subject.arrays, getattr(torch, dtype))
    rows = {"output": (answer.output, plain.output)}
    if return_lse:
        rows["lse"] = answer.lse, plain.lse
    if cotangents is not None:
        exact = exact_gradients(cotangents)
        formulas = gradients_of(plain.output, plain.lse, subject.arrays, cotangents)
        rows |= {f"gradient of {name}": (exact[name], formulas[name]) for name in subject.arrays}

    sizes = magnitudes(subject, answer, accumulation_eps(dtype), cotangents)
    terms = sum_lengths(subject)
    wanted = {
        name: Wanted(oracle, max_error(numpy_of(formula), oracle), terms[name], sizes[name])
        for name, (oracle, formula) in rows.items()
    }
    return Expected(wanted, cotangents)


def compare(subject: Subject, backend: str, dtype: str, expected: Expected) -> None:
    """AssertionError where an answer or gradient lies outside of its budget, or has another dtype."""
    return_lse = "lse" in expected.wanted
    result = subject.run(backend, return_lse)
    output, lse = result if return_lse else (result, None)
    torch_dtype = getattr(torch, dtype)
    assert output.dtype == torch_dtype, f"output has dtype {output.dtype}, expected {torch_dtype}"
    found = {"output": output}
    if lse is not None:
        score_dtype = torch.promote_types(torch_dtype, torch.float32)
        assert lse.dtype == score_dtype, f"lse has dtype {lse.dtype}, expected {score_dtype}"
        found["lse"] = lse
    if expected.cotangents is not None:
        gradients = gradients_of(output, lse, subject.arrays, expected.cotangents)
        for name, array in subject.arrays.items():
            assert gradients[name].dtype == array.dtype, f"gradient of {name} has dtype {gradients[name].dtype}"
            found[f"gradient of {name}"] = gradients[name]
    for name, (exact, plain_error, terms, magnitude) in expected.wanted.items():
        assert_within_budget(numpy_of(found[name]), exact, plain_error, terms, dtype, name, magnitude=magnitude)


def check(
    subject: Subject,
    backend: str,
    dtype: str,
    *,
    gradients: bool = True,
    return_lse: bool = True,
    truth: Callable[[Subject], Truth] = by_oracle,
    device: str = "cpu",
) -> None:
    """AssertionError where the backend's answers or gradients lie outside of the budget, or have another dtype.

    device: where the backend computes.
    """
    expected = expect(subject, dtype, gradients=gradients, return_lse=return_lse, truth=truth)
    compare(subject if device == "cpu" else subject.on(device), backend, dtype, expected)


def assert_red(subject: Subject, backend: str, dtype: str = "float64", *, gradient: str | None = None) -> None:
    """The comparison refuses the answers; or accepts them, which it looks at first, and refuses the named gradient."""
    which = "(output|lse)" if gradient is None else f"gradient of {gradient}"
    with pytest.raises(AssertionError, match=rf"^{which} \({dtype}\): max error .* exceeds the budget"):
        check(subject, backend, dtype, gradients=gradient is not None)
