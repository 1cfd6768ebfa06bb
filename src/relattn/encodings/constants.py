"""Tensors that depend on no parameter and that every call asks for: they are made once."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache, wraps
from typing import TypeVar, TypeVarTuple

import torch
from jaxtyping import Float64
from torch import Tensor

from relattn.interception import is_intercepted

Key = TypeVarTuple("Key")
Made = TypeVar("Made")
CPU = torch.device("cpu")
SMALL_TENSORS = 64
"""Answers that a function of small tensors keeps."""
LONG_TENSORS = 4
"""Answers that a function of tensors as long as the call keeps: the layers of a model ask for the same few."""


def lru_tensor_cache(size: int) -> Callable[[Callable[[*Key], Made]], Callable[[*Key], Made]]:
    """Keeps the last `size` answers of a function that makes tensors on a CPU.

    Its arguments are hashable, and a device is among them. Nobody may write to these tensors. Nothing is kept where a
    compiler, a mode or torch.func watches, because there they are no plain tensors. Nothing is kept on a GPU either: a
    CUDA graph may hold their address, or a stream may not have written them yet. Nor where an argument is a tensor (the
    first offset of a call with such a start), whose number may change. In inference mode they are made outside of that
    mode, because a later call may need them for gradients.
    """

    def keeping(make: Callable[[*Key], Made]) -> Callable[[*Key], Made]:
        kept = lru_cache(maxsize=size)(torch.inference_mode(False)(make))

        @wraps(make)
        def ask(*key: *Key) -> Made:
            fixed = CPU in key and Tensor not in map(type, key) and not is_intercepted(())
            return kept(*key) if fixed else make(*key)

        return ask

    return keeping


def inverse_frequencies(width: int, base: float, device: torch.device) -> Float64[Tensor, "half"]:
    """base^(-2 i / width) for i = 0 .. width/2 - 1, as in `offsets`, on the device in one operation."""
    last = -(width - 2) / width
    return torch.logspace(0.0, last, width // 2, base=base, dtype=torch.float64, device=device)
