"""Whether something watches a call: then the dispatcher and transforms of PyTorch must see it."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from types import BuiltinFunctionType
from typing import Any, TypeVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.autograd import forward_ad
from torch.torch_version import TorchVersion

from relattn.errors import UnsupportedError

Function = TypeVar("Function", bound=Callable[..., object])

ORDINARY = (Tensor, nn.Parameter)
"""No subclasses of a tensor: to ask them no more keeps a call short."""

HAS_GRAPHS = TorchVersion(torch.__version__) >= "2.8"
"""Whether this torch can trace a call of ours."""

is_exporting = getattr(torch.compiler, "is_exporting", torch.compiler.is_compiling)
"""Whether torch.export traces the call; torch 2.6 cannot tell it from torch.compile."""


def is_compiled() -> bool:
    """Whether torch.compile traces the call, for this machine; torch.export does not count."""
    return torch.compiler.is_compiling() and not is_exporting()


def constant_in_graphs(function: Function) -> Function:
    """Does what torch.compiler.assume_constant_result does.

    Naming that function would import torch._dynamo, which imports triton.
    """
    function._dynamo_marked_constant = True  # pyright: ignore[reportFunctionMemberAccess]
    return function


@constant_in_graphs
def refuse_graph() -> None:
    """Raises UnsupportedError: for a torch that cannot trace a call; run while a graph is made, not recorded in it."""
    raise UnsupportedError(
        f"torch.compile, torch.export: got torch {torch.__version__}; expected 2.8 or later, which can trace relattn; "
        "call it under torch.compiler.disable, or install a later torch"
    )


def is_watched() -> bool:
    """Whether anything but autograd and a compiler sees the operations of a call, or changes them."""
    return (
        torch.jit.is_tracing()  # pyright: ignore[reportPrivateImportUsage]
        or torch._C._are_functorch_transforms_active()
        or torch._C._len_torch_dispatch_stack() > 0  # pyright: ignore[reportPrivateImportUsage]
        or forward_ad._current_level >= 0
        or torch.is_autocast_enabled("cpu")
        or torch.is_autocast_enabled("cuda")
        or type(F.scaled_dot_product_attention) is not BuiltinFunctionType
    )


@constant_in_graphs
def refuse_trace() -> None:
    """Raises UnsupportedError: under torch.jit.trace, which keeps the lengths of its example and is wrong at others."""
    if torch.jit.is_tracing():  # pyright: ignore[reportPrivateImportUsage]
        raise UnsupportedError(
            "torch.jit.trace: got a call of relattn, whose lengths a trace would fix; expected torch.export.export, or "
            "torch.onnx.export with dynamo=True, which keep lengths open"
        )


@constant_in_graphs
def refuse_context_parallel() -> None:
    """Raises UnsupportedError: under torch's `context_parallel`, which replaces torch's own attention by its ring.

    Each process then holds a part of the sequence. Any other attention would see only that part, at position 0.
    """
    if type(F.scaled_dot_product_attention) is BuiltinFunctionType:
        return
    if str(getattr(F.scaled_dot_product_attention, "__module__", "")).startswith("torch.distributed."):
        raise UnsupportedError(
            "relative_attention: was called under torch's context_parallel, where each process would attend to its own "
            "part of the sequence alone; call relattn.distributed.context_parallel_attention outside of it, on parts "
            "that relattn.distributed.split makes"
        )


under_torch_func = torch._C._are_functorch_transforms_active  # pyright: ignore[reportPrivateImportUsage]
"""Whether the call is made under a transform of torch.func (vmap, grad, ...)."""


def in_forward_mode() -> bool:
    """Whether derivatives are computed in forward mode (torch.func.jacfwd, jvp, hessian; dual numbers)."""
    return forward_ad._current_level >= 0


def is_intercepted(tensors: Iterable[Tensor | None]) -> bool:
    """Whether anything but autograd watches the call.

    This may be a compiler, torch.func, a mode of the dispatcher, tensor subclasses, or tensors without numbers.
    """
    if torch.compiler.is_compiling() or torch._C._are_functorch_transforms_active():  # pyright: ignore[reportPrivateImportUsage]
        return True
    return torch._C._len_torch_dispatch_stack() > 0 or not are_plain(tensors)


def are_plain(tensors: Iterable[Tensor | None]) -> bool:
    """Whether none is a subclass of a tensor, and all have numbers."""
    for tensor in tensors:  # noqa: SIM110 -- `all` of a generator takes twice as long
        if tensor is not None and (type(tensor) not in ORDINARY or tensor.is_meta):
            return False
    return True


def read_of(tensors: Iterable[Tensor | None]) -> tuple[tuple[Any, ...] | None, ...] | None:
    """What is read of each tensor, None for None; None in place of all if one is not ordinary."""
    found = []
    for tensor in tensors:
        if tensor is None:
            found.append(None)
        elif type(tensor) not in ORDINARY or tensor.layout is not torch.strided or tensor.is_nested:
            return None
        else:
            sizes = tensor.shape, tensor.stride()
            found.append((*sizes, tensor.dtype, tensor.device, tensor.is_neg(), tensor.requires_grad))
    return tuple(found)


def is_batched(gradient: Tensor) -> bool:
    """Whether the tensor belongs to is_grads_batched, a vmap that does not call register_vmap. No graph has such
    tensors, and compiled autograd cannot trace the question.
    """
    if torch.compiler.is_compiling():
        return False
    return torch._C._functorch.is_legacy_batchedtensor(gradient)  # pyright: ignore[reportAttributeAccessIssue]
