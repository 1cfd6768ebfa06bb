"""Two implementations of one formula, ours and a peer's, held against each other: outputs and gradients.

float64. Both run; the peer under `everything_in_float64`, for many take their angles, or their softmax, through float32
whatever comes in. Neither is the truth, and each errs as any algorithm of its precision does, so their difference is
allowed what `tests.oracle.budget` allows between an answer and the oracle, whose own roundings it counts too:

    max|ours - peer|  <=  2 * plain_error + (c * eps * sqrt(terms) + eps) * magnitude

`plain_error` carries the conditioning of the problem, to which all errors are proportional: the peer's own error in
float32 (against its float64), times eps64 / eps32.

float32. The peer's float64 answer is now the truth, and the peer's float32 run, as published, is the plain formula:
ours may err at most twice as much, plus the rounding of one sum.

Sums that cancel. Adding a vector to every key moves no weight, so the gradient by a key projection's bias is zero, and
what comes out is the rounding of the terms that cancel. The gradient by the same projection's weight adds the same
terms, times inputs of size one, and does not cancel: its size is the magnitude (`cancels`).
"""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager

import numpy as np
import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

from tests import seeds
from tests.oracle import assert_within_budget, max_error
from tests.oracle.budget import EPS

Arrays = Mapping[str, Tensor]
Function = Callable[[dict[str, Tensor]], Tensor]


def assert_same_numbers(
    ours: Function, peer: Function, arrays: Arrays, terms: int, *, cancels: Mapping[str, str] | None = None
) -> None:
    """ours(arrays) and peer(arrays), and their gradients by every array, agree in float64 and in float32.

    ours, peer: functions of inputs and parameters by name, in the dtype they are to compute in (`functional_call` puts
        parameters into a module). A peer that makes buffers makes its module inside of the function.
    arrays: the inputs and parameters; rounded to float32 first, so that both dtypes start from the same numbers.
    terms: how many products the longest sum behind an element adds, the sums inside it included (`longest_sum`).
    cancels: arrays whose gradient is zero by the softmax's invariance, and for each the array whose gradient adds
        terms of the same size.
    """
    with everything_in_float64():
        double = outcomes(peer, arrays, torch.float64)
    single = outcomes(peer, arrays, torch.float32)
    ours_double, ours_single = (outcomes(ours, arrays, dtype) for dtype in (torch.float64, torch.float32))
    for name, truth in double.items():
        assert np.abs(truth).max() > 0.0 or name in (cancels or {}), f"{name} of the peer is zero: it compares nothing"
        magnitude = np.abs(double[(cancels or {}).get(name, name)]).max()
        plain_error = max_error(single[name], truth)
        conditioning = plain_error * EPS["float64"] / EPS["float32"]
        assert_within_budget(ours_double[name], truth, conditioning, terms, "float64", name, magnitude=magnitude)
        assert_within_budget(ours_single[name], truth, plain_error, terms, "float32", name, magnitude=magnitude)


def outcomes(function: Function, arrays: Arrays, dtype: torch.dtype) -> dict[str, np.ndarray]:
    """The output, and the gradient of its product with a fixed random tensor by every array, in float64 NumPy."""
    leaves = {name: array.detach().float().to(dtype).requires_grad_() for name, array in arrays.items()}
    output = function(leaves)
    assert output.dtype == dtype, f"the output has dtype {output.dtype}, expected {dtype}"
    weights = seeds.generator(output.numel()).normal(size=output.shape).astype(np.float32)
    gradients = torch.autograd.grad(output, list(leaves.values()), torch.from_numpy(weights).to(dtype))
    found = {"output": output, **dict(zip(leaves, gradients, strict=True))}
    return {name: tensor.detach().double().numpy() for name, tensor in found.items()}


def longest_sum(batch: int, queries: int, keys: int, width: int, head_dim: int, *, relative_terms: int = 1) -> int:
    """`terms` of an attention module: its gradients cross a whole output twice, and may meet every pair.

    An output adds the projections of query, key, value and output, a score of one product of head_dim numbers for the
    content and each relative term, and a row of weights. width: of the projections' inputs; 0 without projections.
    """
    output = 4 * width + (1 + relative_terms) * head_dim + keys
    return 2 * output + batch * queries * keys


class _Widening(TorchFunctionMode):
    """Every mention of float32 in a call of torch taken as float64."""

    def __torch_function__(self, function, types, args=(), kwargs=None):
        if function is Tensor.float:
            function = Tensor.double
        named = {name: _widened(value) for name, value in (kwargs or {}).items()}
        return function(*map(_widened, args), **named)


def _widened(value):
    return torch.float64 if value is torch.float32 else value


@contextmanager
def everything_in_float64() -> Iterator[None]:
    """A peer's code as it is, but float32 means float64: in conversions, in dtype arguments, and by default."""
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    try:
        with _Widening():
            yield
    finally:
        torch.set_default_dtype(before)
