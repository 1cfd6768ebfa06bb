"""Small tensors that depend on no parameter and that every call asks for: they are made once."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache, wraps
from typing import TypeVarTuple

import torch
from torch import Tensor

from relattn.watched import is_watched

Key = TypeVarTuple("Key")
CPU = torch.device("cpu")
MOST = 64
"""Tensors that each function keeps: the last ones asked for."""


def constant(make: Callable[[*Key], Tensor]) -> Callable[[*Key], Tensor]:
    """Keeps what a function of hashable arguments, a device among them, makes on a CPU; nobody may write to it.

    Where a compiler, a mode or torch.func watches, it is made anew, for there it is no plain tensor. So it is on a GPU,
    where a CUDA graph may hold its address, or a stream may not have written it yet. In inference mode it is made
    outside of that mode, because a later call may need it for gradients.
    """

    @lru_cache(maxsize=MOST)
    def kept(*key: *Key) -> Tensor:
        with torch.inference_mode(False):
            return make(*key)

    @wraps(make)
    def ask(*key: *Key) -> Tensor:
        return kept(*key) if CPU in key and not is_watched(()) else make(*key)

    return ask
