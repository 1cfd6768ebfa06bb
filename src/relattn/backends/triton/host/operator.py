"""The kernels as PyTorch operators, `relattn::triton` and `relattn::triton_backward`.

torch.compile and torch.export see one node each, for all lengths. Defining them does not import Triton: the kernels are
imported when they first run. No tensor's value is read, so CUDA graphs may capture a call.
"""

from __future__ import annotations

import torch
from torch import Tensor

from relattn.backends.operators import refusal
from relattn.backends.problem_arguments import on_axis
from relattn.backends.problem_operator import Answers, Forward, operator_of
from relattn.backends.triton.host.lowering import call_of
from relattn.backends.triton.host.padding import of_seeing_rows, with_padding, without_padding
from relattn.backends.triton.host.reasons import of_the_call
from relattn.equation.philox import seed_of
from relattn.equation.problem import Problem


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


def _backward(problem: Problem, seed: Tensor | None, answers: Answers, wanted: set[str]) -> dict[str, Tensor]:
    """The gradients that `wanted` names, each in the dtype of its tensor."""
    whole, tensors = problem, _tensors_of(problem)
    problem = without_padding(whole)
    if problem.num_pairs() == 0:
        return {name: torch.zeros_like(tensors[name]) for name in wanted}
    from relattn.backends.triton.kernels.backward import backward

    call, cotangents = call_of(problem, seed), (answers.output_gradient, answers.lse_gradient)
    by_output, by_lse = of_seeing_rows(problem.mask, answers.maximum, *cotangents)
    with torch.cuda.device_of(call.query):  # kernels run on the current device
        output = answers.output.to(call.output_dtype)
        answers = answers._replace(output=output, output_gradient=by_output, lse_gradient=by_lse)
        by_name = backward(call, answers, wanted)._asdict()
    gradients = by_name.pop("axes") | {name: gradient for name, gradient in by_name.items() if gradient is not None}
    if problem.key.shape[2] != whole.key.shape[2]:
        for name in ("key", "value"):
            gradients[name] = with_padding(whole, gradients[name])
        for name in gradients.keys() & {"key_bias", "explicit_mask"}:
            numbers = gradients[name]
            if numbers.shape[-1] != tensors[name].shape[-1]:
                gradients[name] = with_padding(whole, numbers.unsqueeze(-1)).squeeze(-1)
    if "key_bias" in gradients:
        gradients["key_bias"] = gradients["key_bias"].sum_to_size(tensors["key_bias"].shape)
    unused = {name: torch.zeros_like(tensors[name]) for name in wanted - gradients.keys()}  # an r without tables
    return unused | {name: gradients[name].to(tensors[name].dtype) for name in wanted & gradients.keys()}


def _tensors_of(problem: Problem) -> dict[str, Tensor]:
    """The tensors that may have a gradient, by name."""
    tensors = {
        "query": problem.query, "key": problem.key, "value": problem.value,
        "explicit_mask": problem.mask.pairs, "key_bias": problem.key_bias,
    }  # fmt: skip
    for n, axis in enumerate(problem.axes):
        tensors[on_axis("relative_query", n)] = axis.relative_query
        tensors |= {on_axis(name, n): table.values for name, table in axis.tables().items()}
    return {name: tensor for name, tensor in tensors.items() if tensor is not None}


run = operator_of("triton", _forward, _backward, direct=_direct, reads_starts=False)
"""O and, if wanted, lse, from a problem and the seed of its dropout."""


def part(problem: Problem) -> Forward:
    """The answers of a part of a call."""
    return _forward(problem.replace(for_backward=True), seed_of(problem, problem.query.device))


def gradients(problem: Problem, answers: Answers, wanted: list[str]) -> dict[str, Tensor]:
    """A part's share of the gradients of a call, whose answers are given."""
    return _backward(problem, seed_of(problem, problem.query.device), answers, set(wanted))
