"""Small tensors that depend on no parameter and that every call asks for: they are made once."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache, wraps
from typing import TypeVarTuple

import torch
from torch import Tensor

from relattn.watched import is_watched

Key = TypeVarTuple("Key")
MOST = 64
"""Tensors that each function keeps: the last ones asked for."""


def constant(make: Callable[[*Key], Tensor]) -> Callable[[*Key], Tensor]:
    """Keeps what a function of hashable arguments makes; nobody may write to it.

    Where a compiler, a mode or torch.func watches, it is made anew, for there it is no plain tensor. In inference mode
    it is made outside of that mode, because a later call may need it for gradients.
    """

    @lru_cache(maxsize=MOST)
    def kept(*key: *Key) -> Tensor:
        with torch.inference_mode(False):
            return make(*key)

    @wraps(make)
    def ask(*key: *Key) -> Tensor:
        return make(*key) if is_watched(()) else kept(*key)

    return ask
