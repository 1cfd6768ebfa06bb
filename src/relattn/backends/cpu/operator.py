"""The kernels as PyTorch operators, `relattn::native` and `relattn::native_backward`."""

from __future__ import annotations

import ctypes
import struct
from typing import Any

import torch
from torch import Tensor

from relattn.backends.cpu.inputs import Inputs, rows_of
from relattn.backends.cpu.layout import WORKSPACE, AxisGradients, Gradients, Outputs, packed
from relattn.backends.cpu.library import Kernels, kernels
from relattn.backends.dense import DenseBackend
from relattn.backends.problem_arguments import OF_AN_AXIS, on_axis
from relattn.backends.problem_operator import Answers, Forward, operator_of
from relattn.equation.philox import seed_of
from relattn.equation.problem import Problem
from relattn.errors import UnsupportedError

FLOATS: dict[str, Any] = {"dtype": torch.float32, "device": "cpu"}
"""The dtype and device of the kernels' outputs, for all defaults of torch."""

FORWARD_BLOCKS = (192, 256)
BACKWARD_BLOCKS = (96, 384)
"""The queries and keys of a block: their rows and a tile of scores fit into a core's second-level cache."""


QUERIES_OF_A_KEY = 8
"""Up to this many queries, counted over the heads that share a key, read the keys where they lie."""

PAIRS_TO_SHARE = 2**15
FEW_PAIRS_TO_SHARE = 2**12
"""With fewer pairs of queries and keys, over all heads, one thread takes less time than waking others."""

AXISLESS = ("query", "key", "value", "explicit_mask", "key_bias")
"""The tensors without an axis that may have a gradient, in the order of `Gradients`."""

ALIGNED = 64
"""Bytes of a cache line, and of the widest vector."""


def attend(problem: Problem, seed: Tensor | None, *, return_lse: bool, for_backward: bool = False) -> Outputs:
    """O, lse if wanted, and the numbers from which the backward pass finds the weights. seed: the seed of dropout.

    Before a backward pass the keys are packed as it packs them, however few the queries are. Then both passes sum a
    score in one order, and its weight is the same at any size of the scores.
    """
    rows, width = problem.query.shape[:3], problem.value.shape[3]
    few = has_few_queries(problem) and not for_backward
    inputs = Inputs.of(problem, few=few)
    output = torch.empty((*rows, inputs.value.shape[3]), **FLOATS)
    lse = torch.empty(rows, **FLOATS) if return_lse else None
    maximum, total = (torch.empty(rows, **FLOATS), torch.empty(rows, **FLOATS)) if for_backward else (None, None)
    outputs = Outputs(output, lse, maximum, total)
    if 0 not in (*rows, problem.key.shape[2]):  # there is a pair
        _run(problem, inputs, outputs, None, 0 if seed is None else int(seed), few=few)
    else:
        for tensor, value in zip(outputs, (0.0, -torch.inf, -torch.inf, 0.0), strict=True):
            if tensor is not None:
                tensor.fill_(value)
    if lse is not None and inputs.key_shift is not None:
        lse += inputs.key_shift
    if width != output.shape[3]:
        output = output[..., :width].contiguous()
    return Outputs(output if problem.output_dtype == torch.float32 else output.to(problem.output_dtype), *outputs[1:])


def _backward(problem: Problem, seed: Tensor | None, answers: Answers, wanted: set[str]) -> dict[str, Tensor]:
    """The gradients that `wanted` names: by the problem's tensors, its tables' values, and its float mask."""
    inputs = Inputs.of(problem)
    buffers = {
        name: torch.zeros(tensor.shape, **FLOATS) if tensor is not None and name in wanted else None
        for name, tensor in _leaves(inputs).items()
    }
    if 0 not in (*problem.query.shape[:3], problem.key.shape[2]):
        output = rows_of(answers.output).contiguous()
        by_axis = [AxisGradients(*(buffers[on_axis(name, n)] for name in OF_AN_AXIS)) for n in range(len(problem.axes))]
        axisless = {name: buffers[name] for name in AXISLESS}
        cotangents = rows_of(answers.output_gradient), answers.lse_gradient.float().resolve_neg().contiguous()
        gradients = Gradients(*cotangents, **axisless, axes=by_axis)
        maximum, total = answers.maximum.contiguous(), answers.total.contiguous()  # a hook may have saved other tensors
        number = 0 if seed is None else int(seed)
        _run(problem, inputs, Outputs(output, None, maximum, total), gradients, number)
    if buffers["key_bias"] is not None and problem.key_bias is not None:
        buffers["key_bias"] = buffers["key_bias"].sum_to_size(problem.key_bias.shape)
    tensors = {
        "query": problem.query, "key": problem.key, "value": problem.value, "explicit_mask": problem.mask.pairs,
        "key_bias": problem.key_bias,
    }  # fmt: skip
    for n, axis in enumerate(problem.axes):
        tensors[on_axis("relative_query", n)] = axis.relative_query
        tensors |= {on_axis(name, n): table.values for name, table in axis.tables().items()}
    return {name: _like(tensors[name], buffers[name]) for name in wanted}


def _leaves(inputs: Inputs) -> dict[str, Tensor | None]:
    """The tensors that may have a gradient, by name."""
    axisless = (*inputs[:3], inputs.explicit, inputs.key_bias)
    leaves: dict[str, Tensor | None] = dict(zip(AXISLESS, axisless, strict=True))
    for n, axis in enumerate(inputs.axes):
        leaves |= {on_axis(name, n): getattr(axis, name) for name in OF_AN_AXIS}
    return leaves


def _like(tensor: Tensor | None, gradient: Tensor | None) -> Tensor:
    """The gradient in the dtype and width of its tensor."""
    assert tensor is not None
    if gradient is None:  # a relative query without relative keys
        return torch.zeros_like(tensor)
    if gradient.shape[-1] != tensor.shape[-1]:
        gradient = gradient[..., : tensor.shape[-1]].contiguous()
    return gradient.to(tensor.dtype)


def has_few_queries(problem: Problem) -> bool:
    """Whether reading the keys for every query costs less than packing them for all."""
    _, heads, queries, _ = problem.query.shape
    return heads // problem.key.shape[1] * queries <= QUERIES_OF_A_KEY


def _run(
    problem: Problem, inputs: Inputs, outputs: Outputs, gradients: Gradients | None, seed: int, *, few: bool = False
) -> None:
    """Runs the backward pass if gradients are given, else a forward pass."""
    native = _kernels()
    threads = torch.get_num_threads() if problem.num_pairs() >= (FEW_PAIRS_TO_SHARE if few else PAIRS_TO_SHARE) else 1
    as_backward = gradients is not None or (outputs.maximum is not None and _multiplies_rows_of_lists(inputs))
    most_queries, most_keys = BACKWARD_BLOCKS if as_backward else FORWARD_BLOCKS
    blocks = min(most_queries, problem.query.shape[2]), min(most_keys, problem.key.shape[2])
    call = packed(problem, inputs, outputs, gradients, blocks, threads, seed)
    at = ctypes.addressof(ctypes.c_char.from_buffer(call))
    workspace = _with_workspace(call, native.few_workspace(at) if few else native.workspace(at, gradients is not None))
    kernel = native.few if few else native.forward if gradients is None else native.backward
    kernel(at)
    del workspace


def _multiplies_rows_of_lists(inputs: Inputs) -> bool:
    """Whether listed pairs have products with rows, whose rounding depends on their block (kernels/lookup.h)."""
    return any(
        axis.query_positions is not None and (axis.relative_keys is not None or axis.relative_queries is not None)
        for axis in inputs.axes
    )


def _kernels() -> Kernels:
    available = kernels()
    if not isinstance(available, Kernels):  # an exported graph calls the operator without asking any backend
        raise UnsupportedError(f"backend='native' cannot run this: {available}; use 'tiled'", {"native": [available]})
    return available


def _with_workspace(call: bytearray, floats: int) -> Tensor:
    """Memory that the call points to, until it is freed."""
    workspace = torch.empty(floats, **FLOATS)
    struct.pack_into("=q", call, WORKSPACE, -(-workspace.data_ptr() // ALIGNED) * ALIGNED)
    return workspace


def _forward(problem: Problem, seed: Tensor | None) -> Forward:
    output, lse, maximum, total = attend(problem, seed, return_lse=True, for_backward=True)
    assert lse is not None and maximum is not None and total is not None
    return Forward(output, lse, maximum, total)


def _attend(problem: Problem, seed: Tensor | None) -> tuple[Tensor, Tensor | None]:
    return attend(problem, seed, return_lse=problem.return_lse)[:2]


run = operator_of("native", _forward, _backward, differentiable=DenseBackend().run, direct=_attend)
"""O and, if wanted, lse, from a problem and the seed of its dropout."""


def part(problem: Problem) -> Forward:
    """The answers of a part of a call."""
    return _forward(problem, seed_of(problem))


def gradients(problem: Problem, answers: Answers, wanted: list[str]) -> dict[str, Tensor]:
    """A part's share of the gradients of a call, whose answers are given."""
    return _backward(problem, seed_of(problem), answers, set(wanted))
