"""The kernels as PyTorch operators, `relattn::native` and `relattn::native_backward`."""

from __future__ import annotations

import torch
from torch import Tensor

from relattn.backends.native.layout import Gradients, Inputs, Outputs, packed, rows_of
from relattn.backends.native.library import Kernels, kernels
from relattn.backends.problem_operator import Answers, Forward, operator_of
from relattn.errors import UnsupportedError
from relattn.score.problem import TABLES, Problem


def forward(problem: Problem) -> Forward:
    """O, lse, and what the backward pass finds the weights by."""
    query, rows, width = problem.query, problem.query.shape[:3], problem.value.shape[3]
    inputs = Inputs.of(problem)
    output = query.new_empty((*rows, inputs.value.shape[3]), dtype=torch.float32)
    lse, maximum, total = query.new_empty((3, *rows), dtype=torch.float32)
    if 0 in (rows[0], rows[2], problem.key.shape[2]):
        output.zero_(), lse.fill_(-torch.inf), maximum.zero_(), total.zero_()
    else:
        _run(problem, inputs, Outputs(output, lse, maximum, total), None)
    if width != output.shape[3]:
        output = output[..., :width].contiguous()
    return Forward(output.to(problem.output_dtype), lse, maximum, total)


def backward(problem: Problem, answers: Answers, wanted: set[str]) -> dict[str, Tensor]:
    """The gradients that `wanted` names: of the problem's tensors, and of its tables' values."""
    inputs = Inputs.of(problem)
    tensors = {name: getattr(inputs, name) for name in ("query", "key", "value", "relative_query", *TABLES)}
    made = {
        name: None if tensor is None or name not in wanted else torch.zeros_like(tensor, memory_format=torch.contiguous_format)
        for name, tensor in tensors.items()
    }
    if 0 not in (*problem.query.shape[:3:2], problem.key.shape[2]):
        output = rows_of(answers.output).contiguous()
        gradients = Gradients(rows_of(answers.output_gradient), answers.lse_gradient.float().contiguous(), **made)
        _run(problem, inputs, Outputs(output, None, answers.maximum, answers.total), gradients)
    given = {"query": problem.query, "key": problem.key, "value": problem.value, "relative_query": problem.sequence.relative_query}
    given |= {name: table.values for name, table in problem.sequence.tables.items()}
    return {name: _like(given[name], made[name]) for name in wanted}


def _like(given: Tensor | None, gradient: Tensor | None) -> Tensor:
    """The gradient in the dtype and width of what it is by."""
    assert given is not None
    if gradient is None:  # a relative query that meets no relative keys
        return torch.zeros_like(given)
    if gradient.shape[-1] != given.shape[-1]:
        gradient = gradient[..., : given.shape[-1]].contiguous()
    return gradient.to(given.dtype)


def _run(problem: Problem, inputs: Inputs, outputs: Outputs, gradients: Gradients | None) -> None:
    found = kernels()
    if not isinstance(found, Kernels):  # an exported graph calls the operator without asking any backend
        raise UnsupportedError(f"backend='native' cannot run this: {found}; use 'tiled'", {"native": [found]})
    threads = torch.get_num_threads()
    size = found.workspace(packed(problem, inputs, outputs, gradients, threads, 0), int(gradients is not None))
    workspace = torch.empty(size, dtype=torch.float32)
    call = packed(problem, inputs, outputs, gradients, threads, -(-workspace.data_ptr() // 64) * 64)
    (found.forward if gradients is None else found.backward)(call)


def _forward(problem: Problem, seed: Tensor | None) -> Forward:
    return forward(problem)


def _backward(problem: Problem, seed: Tensor | None, answers: Answers, wanted: set[str]) -> dict[str, Tensor]:
    return backward(problem, answers, wanted)


run = operator_of("native", _forward, _backward)
"""O and lse of a problem; it draws no dropout, so there is no seed."""
