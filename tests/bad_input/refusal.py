"""What every test here shares: a good call to spoil, and the check of what an error says."""

import re
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
import torch
from torch import Tensor

import relattn

B, H, LQ, LK, D = 2, 4, 5, 6, 8


def ones(*size: int, dtype: torch.dtype = torch.float32, device: str = "cpu") -> Tensor:
    return torch.ones(size, dtype=dtype, device=device)


def call(function=relattn.relative_attention, **changes):
    """A call that is in order, query [2, 4, 5, 8] with key and value [2, 4, 6, 8], but for `changes`."""
    good = {"query": ones(B, H, LQ, D), "key": ones(B, H, LK, D), "value": ones(B, H, LK, D)}
    return function(**{**good, **changes})


@contextmanager
def refused(error: type[Exception], said: str) -> Iterator[pytest.ExceptionInfo]:
    """The block raises `error` itself, no subclass, and its message is `said`, in which "..." stands for any text."""
    with pytest.raises(error) as caught:
        yield caught
    assert caught.type is error, f"{caught.type.__name__}: {caught.value}"
    pattern = ".*".join(re.escape(part) for part in said.split("..."))
    assert re.fullmatch(pattern, str(caught.value)), f"it says   {caught.value}\nand not   {said}"
