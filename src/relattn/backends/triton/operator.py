"""The kernels as PyTorch operators, `relattn::triton` and `relattn::triton_backward`.

torch.compile and torch.export see one node each, for all lengths. Defining them does not import Triton: the kernels are
imported when they first run. No tensor's value is read, so CUDA graphs may capture a call.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from relattn.backends.philox import seed_of
from relattn.backends.problem_arguments import on_axis
from relattn.backends.problem_operator import Answers, Forward, operator_of
from relattn.backends.triton.call import Answers as KernelAnswers
from relattn.backends.triton.call import Call, is_added
from relattn.backends.triton.lowering import call_of
from relattn.backends.triton.padding import of_seeing_rows, with_padding, without_padding
from relattn.score.problem import Problem


def _forward(problem: Problem, seed: Tensor | None) -> Forward:
    """maximum and total are those of the kernels where a mask is added; else lse, less c, and None."""
    call = without_padding(call_of(problem, seed))
    rows, width = call.query.shape[:3], call.value.shape[3]
    if _has_no_pair(call):
        output = call.query.new_zeros((*rows, width), dtype=problem.output_dtype)
        lse, maximum = (call.query.new_full(rows, -torch.inf, dtype=torch.float32) for _ in range(2))
        return Forward(output, lse, maximum, torch.zeros_like(lse))
    from relattn.backends.triton.forward import forward

    with torch.cuda.device_of(call.query):  # kernels run on the current device
        output, lse, maximum, total = forward(call)
    if maximum is None:  # who gets lse may change it
        maximum = lse.clone() if call.key_shift is None else lse
    if call.key_shift is not None:
        lse = lse + call.key_shift
    return Forward(output.to(problem.output_dtype), lse, maximum, total)


def _backward(problem: Problem, seed: Tensor | None, answers: Answers, wanted: set[str]) -> dict[str, Tensor]:
    """The gradients that `wanted` names, each in the dtype of its tensor."""
    given, tensors = call_of(problem, seed), _tensors_of(problem)
    call = without_padding(given)
    if _has_no_pair(call):
        return {name: torch.zeros_like(tensors[name]) for name in wanted}
    from relattn.backends.triton.backward import backward

    output, maximum, total, output_gradient, lse_gradient = answers
    cotangents = of_seeing_rows(call, maximum, output_gradient, lse_gradient)
    beside = (maximum, total) if call.adds_mask else (None, None)
    with torch.cuda.device_of(call.query):  # kernels run on the current device
        kernel_answers = KernelAnswers(output.to(call.output_dtype), maximum, *beside)
        found = backward(call, kernel_answers, *cotangents, wanted)
    by_name = found._asdict()
    gradients = by_name.pop("axes") | {name: gradient for name, gradient in by_name.items() if gradient is not None}
    for name in ("key", "value"):
        gradients[name] = with_padding(given, gradients[name])
    for name in ("key_bias", "explicit_mask"):
        numbers, whole = gradients.get(name), getattr(given, name)
        if numbers is not None and numbers.shape != whole.shape:
            gradients[name] = with_padding(given, numbers.unsqueeze(-1)).squeeze(-1)
    if "key_bias" in gradients:
        gradients["key_bias"] = gradients["key_bias"].sum_to_size(tensors["key_bias"].shape)
    unused = {name: torch.zeros_like(tensors[name]) for name in wanted - gradients.keys()}  # an r without tables
    return unused | {name: gradients[name].to(tensors[name].dtype) for name in wanted & gradients.keys()}


def _tensors_of(problem: Problem) -> dict[str, Tensor]:
    """The tensors that may have a gradient, by name."""
    given = {
        "query": problem.query, "key": problem.key, "value": problem.value,
        "explicit_mask": problem.mask.explicit, "key_bias": problem.key_bias,
    }  # fmt: skip
    for n, axis in enumerate(problem.axes):
        given[on_axis("relative_query", n)] = axis.relative_query
        given |= {on_axis(name, n): table.values for name, table in axis.tables().items()}
    return {name: tensor for name, tensor in given.items() if tensor is not None}


def _has_no_pair(call: Call) -> bool:
    """No batch, no queries, or no keys in reach: there is no grid to launch a kernel on."""
    return call.query.shape[0] * call.query.shape[2] * call.key.shape[2] == 0


run = operator_of("triton", _forward, _backward, reads_starts=False)
"""O and, if wanted, lse, from a problem and the seed of its dropout."""


def part(problem: Problem) -> Forward:
    """The answers of a part of a call: the maximum of a row is lse less c, and its total 1."""
    found = _forward(problem, seed_of(problem, problem.query.device))
    maximum = found.maximum if found.total is None else found.maximum * math.log(2.0) + found.total.log()
    return found._replace(maximum=maximum, total=_sees(maximum))


def gradients(problem: Problem, answers: Answers, wanted: list[str]) -> dict[str, Tensor]:
    """A part's share of the gradients of a call, whose answers are given."""
    maximum = answers.maximum + answers.total.log()
    base = math.log(2.0) if is_added(problem.mask.explicit) else 1.0
    answers = answers._replace(maximum=maximum / base, total=_sees(maximum))
    return _backward(problem, seed_of(problem, problem.query.device), answers, set(wanted))


def _sees(maximum: Tensor) -> Tensor:
    """1 for a row that sees a key, else 0."""
    return (maximum != -torch.inf).to(maximum.dtype)
