"""What backends that are PyTorch operators share: the things that these operators do not do, and how they say so."""

from __future__ import annotations

import torch

from relattn.equation.problem import Problem
from relattn.errors import UnsupportedError
from relattn.interception import constant_in_graphs, in_forward_mode, under_torch_func

NO_FORWARD_MODE = "it has no forward-mode derivative"


def reasons_of_an_operator(onnx: str) -> list[str]:
    """Why our operators cannot run in this place: in torch.func, or (`onnx`) in an export."""
    reasons = []
    if under_torch_func():
        reasons.append("it does not run under vmap, grad and the other transforms of torch.func")
    if in_forward_mode():
        reasons.append(NO_FORWARD_MODE)
    if torch.compiler.is_compiling() and _exports_to_onnx():
        reasons.append(onnx)
    return reasons


def reasons_of_dropout(problem: Problem) -> list[str]:
    """Why a backend that draws for all of its pairs at once does not run dropout of a part of a call."""
    if problem.seed is None or problem.dropout_p == 0.0:
        return []
    return ["its dropout draws no number for each pair, and this is a part of a call whose parts must agree"]


@constant_in_graphs
def _exports_to_onnx() -> bool:
    """Whether torch.onnx.export is running; torch's own answer is False where torch.compile traces it."""
    return torch.onnx.is_in_onnx_export()


def refuse_onnx(backend: str) -> None:
    """Raises UnsupportedError: where torch.onnx.export meets the operator in an ExportedProgram. Of a module it exports
    what dense computes.
    """
    if _exports_to_onnx():
        raise UnsupportedError(
            f"torch.onnx.export: got an ExportedProgram that calls relattn::{backend}; expected the module itself, or "
            "a program that was exported with backend='dense'"
        )


def refuse_vmap(backend: str) -> None:
    """relattn::<backend> and relattn::<backend>_backward refuse vmap, and name dense.

    An exported graph calls them without asking any backend.
    """

    def refuse(info, in_dims, *arguments):
        raise refusal(backend, "it does not run under vmap")

    torch.library.register_vmap(f"relattn::{backend}", refuse)
    torch.library.register_vmap(f"relattn::{backend}_backward", refuse)


def refuse_double_backward(backend: str) -> None:
    """relattn::<backend>_backward refuses another backward, and names dense."""

    def refuse(ctx, *gradients):
        raise refusal(backend, "it has no double backward")

    torch.library.register_autograd(f"relattn::{backend}_backward", refuse)


def refusal(backend: str, reason: str) -> UnsupportedError:
    """The error of an operator for a request that it cannot serve."""
    return UnsupportedError(f"backend={backend!r} cannot run this: {reason}; use 'dense'", {backend: [reason]})
