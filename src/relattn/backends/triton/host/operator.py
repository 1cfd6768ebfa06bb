"""The kernels as PyTorch operators, `relattn::triton` and `relattn::triton_backward`.

torch.compile and torch.export see one node each, for all lengths. Defining them does not import Triton: the kernels are
imported when they first run. No tensor's value is read, so CUDA graphs may capture a call.
"""

from __future__ import annotations

import torch
from torch import Tensor

from relattn.backends.operators import refusal
from relattn.backends.problem_operator import Answers, Forward, finished, operator_of
from relattn.backends.triton.host.lowering import call_of
from relattn.backends.triton.host.padding import of_seeing_rows, with_padding, without_padding
from relattn.backends.triton.host.reasons import of_the_call
from relattn.equation.philox import seed_of
from relattn.equation.problem import Differentiable, Problem


def _forward(problem: Problem, seed: Tensor | None) -> Forward:
    if reasons := of_the_call(problem):  # an exported graph calls the operator without asking any backend
        raise refusal("triton", "; ".join(reasons))
    return _answers(problem, seed)


def _direct(problem: Problem, seed: Tensor | None) -> tuple[Tensor, Tensor | None]:
    output, lse, _, _ = _answers(problem, seed)
    return output, lse if problem.return_lse else None


def _answers(problem: Problem, seed: Tensor | None) -> Forward:
    problem = without_padding(problem)
    call = call_of(problem, seed)
    if problem.num_pairs() == 0:  # there is no grid to launch a kernel on
        rows, width = call.query.shape[:3], call.value.shape[3]
        output = call.query.new_zeros((*rows, width), dtype=problem.output_dtype)
        lse, maximum = (call.query.new_full(rows, -torch.inf, dtype=torch.float32) for _ in range(2))
        return Forward(output, lse, maximum, torch.zeros_like(lse))
    from relattn.backends.triton.kernels.forward import forward

    with torch.cuda.device_of(call.query):  # kernels run on the current device
        answers = forward(call)
    lse = answers.lse if call.key_shift is None else answers.lse + call.key_shift
    return answers._replace(output=answers.output.to(problem.output_dtype), lse=lse)


def _backward(
    problem: Problem, seed: Tensor | None, answers: Answers, wanted: Differentiable[bool]
) -> Differentiable[Tensor | None]:
    """The gradients, those of tables, mask and key bias where they are wanted; None for zeros."""
    whole, problem = problem, without_padding(problem)
    if problem.num_pairs() == 0:
        return Differentiable.of([None] * len(whole.leaves()))
    from relattn.backends.triton.kernels.backward import backward

    call, cotangents = call_of(problem, seed), (answers.output_gradient, answers.lse_gradient)
    by_output, by_lse = of_seeing_rows(problem.mask, answers.maximum, *cotangents)
    with torch.cuda.device_of(call.query):  # kernels run on the current device
        output = answers.output.to(call.output_dtype)
        answers = answers._replace(output=output, output_gradient=by_output, lse_gradient=by_lse)
        found = backward(call, answers, wanted)
    if problem.key.shape[2] == whole.key.shape[2]:
        return found
    query, key, value, *numbers, axes = found
    for n, tensor in enumerate((whole.mask.pairs, whole.key_bias)):
        if (gradient := numbers[n]) is not None and tensor is not None and gradient.shape[-1] != tensor.shape[-1]:
            numbers[n] = with_padding(whole, gradient.unsqueeze(-1)).squeeze(-1)
    assert key is not None and value is not None
    return Differentiable(query, with_padding(whole, key), with_padding(whole, value), numbers[0], numbers[1], axes)


run = operator_of("triton", _forward, _backward, direct=_direct, reads_starts=False).run
"""O and, if wanted, lse, from a problem and the seed of its dropout."""


def part(problem: Problem) -> Forward:
    """The answers of a part of a call."""
    return _forward(problem.replace(for_backward=True), seed_of(problem, problem.query.device))


def gradients(problem: Problem, answers: Answers, wanted: Differentiable[bool]) -> Differentiable[Tensor | None]:
    """A part's share of the gradients of a call, whose answers are given."""
    seed = seed_of(problem, problem.query.device)
    return finished(problem, wanted, _backward(problem, seed, answers, wanted))
