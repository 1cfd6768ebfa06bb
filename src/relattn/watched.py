"""Who looks on where a call is made: what PyTorch's dispatcher and its transforms would not see."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor, nn


def under_torch_func() -> bool:
    """Whether the call is made under a transform of torch.func (vmap, grad, ...)."""
    return torch._C._are_functorch_transforms_active()  # pyright: ignore[reportPrivateImportUsage]


def is_watched(tensors: Iterable[Tensor | None]) -> bool:
    """Whether anyone but autograd looks at what is called.

    A compiler, torch.func, a mode of the dispatcher, tensors of a class of their own or without numbers.
    """
    if torch.compiler.is_compiling() or under_torch_func() or torch._C._len_torch_dispatch_stack():
        return True
    for tensor in tensors:  # `any` of a generator takes twice as long
        if tensor is not None and (type(tensor) not in (Tensor, nn.Parameter) or tensor.is_meta):
            return True
    return False


def is_batched(gradient: Tensor) -> bool:
    """Whether it is one of is_grads_batched, a vmap that register_vmap does not hear of."""
    return torch._C._functorch.is_legacy_batchedtensor(gradient)  # pyright: ignore[reportAttributeAccessIssue]
