"""Why the Triton kernels cannot run a problem, one sentence per reason."""

from __future__ import annotations

import os
from functools import cache
from importlib.metadata import PackageNotFoundError, version

import torch
from torch import Tensor

from relattn.backends.operators import reasons_of_an_operator
from relattn.backends.triton.host.call import FARTHEST, WIDEST
from relattn.equation.problem import TABLES, Axis, Problem
from relattn.interception import constant_in_graphs
from relattn.positions.certainty import statically_true

TRIED = ("3.7", "3.8", "3.9")
"""The versions of Triton that the kernels were tried with. 3.6 does not compile them."""
HOW_TO_GET_IT = (
    "Triton 3.7 comes with torch 2.12 and 2.13, 3.8 with torch 2.14, 3.9 with torch 2.15; beside an older torch "
    "(2.11 was tried), pip install 'triton==3.7.1'"
)
FIRST_CAPABILITY = (8, 0)
"""The capability of Ampere chips, the first with tensor cores for bfloat16."""


def reasons_of(problem: Problem) -> list[str]:
    """Reasons of the place first, then reasons of the call."""
    return [
        *of_the_place(problem.query.device.type, problem.query.device.index),
        *of_the_call(problem),
        *reasons_of_an_operator("ONNX has no operator for its kernels"),
    ]


def of_the_call(problem: Problem) -> list[str]:
    """Reasons of dtypes, widths and offsets."""
    reasons, sequence = [], problem.axes[0]
    tensors = {"query": problem.query, "key": problem.key, "value": problem.value}
    for number, axis in enumerate(problem.axes):
        of_axis = f" of axis {number}" if number else ""
        for name, term in zip(("relative_query", *TABLES), axis[1:], strict=True):
            if term is not None:
                tensors[name + of_axis] = term if isinstance(term, Tensor) else term.values
    double = wide = None
    for name, tensor in tensors.items():
        if double is None and tensor.dtype == torch.float64:
            double = name
        if wide is None and tensor.shape[-1] > WIDEST and tensor.dim() > 2 and "bias" not in name:
            wide = name
    if double is not None:
        reasons.append(f"it computes in float32, and {double} is float64")
    origin = sequence.positions.origin
    if origin is None and any(isinstance(table.first, Tensor) for table in sequence.tables().values()):
        reasons.append("for explicit positions it takes the first offset of a table as an int, not as a tensor")
    if wide is not None:
        reasons.append(f"it holds at most {WIDEST} features of a row on chip, and {wide} has {tensors[wide].shape[-1]}")
    return reasons if origin is None else reasons + _of_offsets(sequence, origin)


def _of_offsets(sequence: Axis, origin: int | Tensor) -> list[str]:
    """Reasons of offsets that 32 bits do not hold. Explicit positions have no such limit."""
    reasons, farthest = [], FARTHEST // 2 if isinstance(origin, Tensor) else abs(origin)
    farthest += sequence.positions.query_length + sequence.positions.key_length
    if statically_true(farthest > FARTHEST):
        reasons.append(f"it takes offsets up to {FARTHEST} on the sequence, and those of this call reach {farthest}")
    for name, table in zip(TABLES, sequence[2:], strict=True):
        if table is None or isinstance(table.first, Tensor):  # a tensor is an offset of the call
            continue
        if statically_true(abs(table.first) + table.values.shape[1] > FARTHEST):
            reasons.append(f"it takes tables of offsets up to {FARTHEST}, and {name} begins at offset {table.first}")
    return reasons


@constant_in_graphs
def of_the_place(device: str, index: int | None) -> list[str]:
    """Whether the package is there, and a device that its kernels run on."""
    reasons, package = [], _package()
    if package is None:
        reasons.append(f"the package triton is not installed: {HOW_TO_GET_IT}")
    elif ".".join(package.split(".")[:2]) not in TRIED:
        reasons.append(f"its kernels run with Triton {', '.join(TRIED)}, and this is {package}: {HOW_TO_GET_IT}")
    if device == "cuda" and torch.version.hip is not None:
        reasons.append("its kernels were made for CUDA, and nobody has run them on ROCm")
    elif device == "cuda":
        capability = torch.cuda.get_device_capability(index)
        if capability < FIRST_CAPABILITY:
            first, this = (".".join(map(str, version)) for version in (FIRST_CAPABILITY, capability))
            reasons.append(f"its kernels need a GPU of compute capability {first} or later; this one has {this}")
    elif not (device == "cpu" and _is_interpreted()):
        reasons.append(f"its kernels run on CUDA, and the query lies on {device}")
    return reasons


@cache
def _package() -> str | None:
    """The version of Triton, if it is installed."""
    try:
        return version("triton")
    except PackageNotFoundError:
        return None


def _is_interpreted() -> bool:
    """Whether Triton runs its kernels in its interpreter, on any device. Triton decides this before a kernel is
    defined.
    """
    return os.environ.get("TRITON_INTERPRET", "").lower() in ("1", "true", "on")
