"""Both passes of the kernels, for any problem."""

from __future__ import annotations

import ctypes
import struct
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from relattn.backends.cpu.inputs import Inputs, rows_of, without_padding
from relattn.backends.cpu.layout import WORKSPACE, Gradients, Outputs, packed
from relattn.backends.cpu.library import Kernels, kernels
from relattn.backends.problem_operator import Answers, Forward, Seed, finished
from relattn.equation.philox import seed_of
from relattn.equation.problem import Differentiable, Problem
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

ALIGNED = 64
"""Bytes of a cache line, and of the widest vector."""


def attend(problem: Problem, seed: Seed, *, return_lse: bool, for_backward: bool = False) -> Outputs:
    """O, lse if wanted, and the numbers from which the backward pass finds the weights. seed: the seed of dropout.

    Before a backward pass the keys are packed as it packs them, however few the queries are. Then both passes sum a
    score in one order, and its weight is the same at any size of the scores.
    """
    rows, width = problem.query.shape[:3], problem.value.shape[3]
    few = has_few_queries(problem) and not for_backward
    if not few:
        problem = without_padding(problem, forward=True)
    inputs = Inputs.of(problem, few=few)
    output = torch.empty((*rows, inputs.value.shape[3]), **FLOATS)
    lse = torch.empty(rows, **FLOATS) if return_lse else None
    maximum, total = (torch.empty(rows, **FLOATS), torch.empty(rows, **FLOATS)) if for_backward else (None, None)
    outputs = Outputs(output, lse, maximum, total)
    if 0 not in (*rows, problem.key.shape[2]):  # there is a pair
        _run(problem, inputs, outputs, None, seed, few=few)
    else:
        for tensor, value in zip(outputs, (0.0, -torch.inf, -torch.inf, 0.0), strict=True):
            if tensor is not None:
                tensor.fill_(value)
    if lse is not None and inputs.key_shift is not None:
        lse += inputs.key_shift
    return Outputs(answer_of(output, width, problem.output_dtype), *outputs[1:])


def backward(
    problem: Problem, seed: Seed, answers: Answers, wanted: Differentiable[bool]
) -> Differentiable[Tensor | None]:
    """The gradients that are wanted; None for zeros."""
    problem = without_padding(problem, forward=False)
    inputs = Inputs.of(problem)
    buffers = buffers_of(inputs, wanted)
    if 0 not in (*problem.query.shape[:3], problem.key.shape[2]):
        cotangents, outputs = read_answers(answers)
        _run(problem, inputs, outputs, Gradients(*cotangents, Differentiable.of(buffers)), seed)
    for n, (buffer, tensor) in enumerate(zip(buffers, problem.leaves(), strict=True)):
        if buffer is not None and tensor is not None:
            buffers[n] = answer_of(buffer, tensor.shape[-1], torch.float32)
    return Differentiable.of(buffers)


def buffers_of(inputs: Inputs, wanted: Differentiable[bool]) -> list[Tensor | None]:
    """Zeros for the gradients that are wanted and not known to be 0, in the order of a problem's leaves."""
    held = [*inputs[:3], inputs.explicit, inputs.key_bias, *(tensor for axis in inputs.axes for tensor in axis[:5])]
    return [
        torch.zeros(tensor.shape, **FLOATS) if one and tensor is not None else None
        for one, tensor in zip(wanted.leaves(), held, strict=True)
    ]


def read_answers(answers: Answers) -> tuple[tuple[Tensor, Tensor], Outputs]:
    """The gradients by the output and lse, and the outputs, as the kernels read them. A hook may have saved others."""
    output, maximum, total = rows_of(answers.output), answers.maximum, answers.total
    cotangents = rows_of(answers.output_gradient), answers.lse_gradient.float().resolve_neg().contiguous()
    return cotangents, Outputs(output.contiguous(), None, maximum.contiguous(), total.contiguous())


def answer_of(rows: Tensor, width: int, dtype: torch.dtype) -> Tensor:
    """Rows of the kernels without the lanes beyond their width, in a dtype."""
    if width != rows.shape[-1]:
        rows = rows[..., :width].contiguous()
    return rows if dtype == torch.float32 else rows.to(dtype)


def has_few_queries(problem: Problem) -> bool:
    """Whether reading the keys for every query costs less than packing them for all."""
    _, heads, queries, _ = problem.query.shape
    return heads // problem.key.shape[1] * queries <= QUERIES_OF_A_KEY


def _run(
    problem: Problem, inputs: Inputs, outputs: Outputs, gradients: Gradients | None, seed: Seed, *, few: bool = False
) -> None:
    """Runs the backward pass if gradients are given, else a forward pass."""
    call, floats, kernel = ready(problem, inputs, outputs, gradients, seed, few=few)
    workspace = unwritten(floats)
    struct.pack_into("=q", call, 8 * WORKSPACE, aligned(workspace))
    kernel(ctypes.addressof(ctypes.c_char.from_buffer(call)))


def ready(
    problem: Problem, inputs: Inputs, outputs: Outputs, gradients: Gradients | None, seed: Seed, *, few: bool
) -> tuple[bytearray, int, Callable[[int], None]]:
    """A call without its workspace, the floats of the workspace, and the kernel that takes the call's address."""
    native = loaded_kernels()
    threads = torch.get_num_threads() if problem.num_pairs() >= (FEW_PAIRS_TO_SHARE if few else PAIRS_TO_SHARE) else 1
    as_backward = gradients is not None or (outputs.maximum is not None and _multiplies_explicit_rows(inputs))
    most_queries, most_keys = BACKWARD_BLOCKS if as_backward else FORWARD_BLOCKS
    blocks = min(most_queries, problem.query.shape[2]), min(most_keys, problem.key.shape[2])
    call = packed(problem, inputs, outputs, gradients, blocks, threads, int(seed or 0))
    at = ctypes.addressof(ctypes.c_char.from_buffer(call))
    if few:
        return call, native.few_workspace(at), native.few
    return call, native.workspace(at, gradients is not None), native.forward if gradients is None else native.backward


def unwritten(floats: int) -> Tensor:
    """Memory for a workspace."""
    return torch.empty(floats, **FLOATS)


def aligned(workspace: Tensor) -> int:
    """Where the kernels' part of it begins."""
    return -(-workspace.data_ptr() // ALIGNED) * ALIGNED


def _multiplies_explicit_rows(inputs: Inputs) -> bool:
    """Whether explicit positions have products with rows, whose rounding depends on their block (kernels/lookup.h)."""
    return any(
        axis.query_positions is not None and (axis.relative_keys is not None or axis.relative_queries is not None)
        for axis in inputs.axes
    )


def loaded_kernels() -> Kernels:
    """The kernels, for calls that have any."""
    available = kernels()
    if not isinstance(available, Kernels):  # an exported graph calls the operator without asking any backend
        raise UnsupportedError(f"backend='native' cannot run this: {available}; use 'blocks'", {"native": [available]})
    return available


def forward(problem: Problem, seed: Seed) -> Forward:
    """The forward pass before a backward pass."""
    output, lse, maximum, total = attend(problem, seed, return_lse=True, for_backward=True)
    assert lse is not None and maximum is not None and total is not None
    return Forward(output, lse, maximum, total)


def forward_alone(problem: Problem, seed: Seed) -> tuple[Tensor, Tensor | None]:
    """O and, if wanted, lse, where no backward pass follows."""
    return attend(problem, seed, return_lse=problem.return_lse)[:2]


def part(problem: Problem) -> Forward:
    """The answers of a part of a call."""
    return forward(problem, seed_of(problem))


def gradients(problem: Problem, answers: Answers, wanted: Differentiable[bool]) -> Differentiable[Tensor | None]:
    """A part's share of the gradients of a call, whose answers are given."""
    return finished(problem, wanted, backward(problem, seed_of(problem), answers, wanted))
