"""Tensors whose elements lie further apart than 32 bits can say, and offsets as far away as the kernels take them.

The tensors lie in sparse files: all but the pages of their rows are nowhere.
"""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from relattn.backends.triton.call import FARTHEST, Call, Table
from tests.triton.test_kernels import TABLES, hold_to_the_equation, make_call

pytest.importorskip("triton", reason="Triton is a package for Linux")
pytestmark = [
    pytest.mark.ptx,
    pytest.mark.skipif("TRITON_INTERPRET" in os.environ, reason="the interpreter's kernels cannot be compiled"),
]

SIZES = (32, 4, 2)
TENSORS = ("query", "key", "value", "relative_query", "explicit_mask")
ROWS = 2**27 + 16
"""Elements from row to row: the last of some 40 is beyond 2^32."""
HEADS, NEAR_HEADS = 2**32 + 16, 2**31 - 16
"""Elements from head to head: a stride that is itself no number of 32 bits, and one that is, but not twice it."""


def spread(tensor: Tensor, axis: int, step: int, path: Path) -> Tensor:
    """The tensor with so many elements from one place on an axis to the next, in a sparse file."""
    strides = list(tensor.contiguous().stride())
    strides[axis] = step
    size = 1 + sum((length - 1) * stride for length, stride in zip(tensor.shape, strides, strict=True))
    room = torch.from_file(str(path), shared=True, size=size, dtype=tensor.dtype)
    return room.as_strided(tensor.shape, strides).copy_(tensor)


def with_spread(call: Call, axis: int, step: int, folder: Path) -> Call:
    """The call with each of its tensors and tables spread; axis: of [batch, head, row, column]."""
    changed: dict[str, Any] = {}
    for name in (*TENSORS, *TABLES):
        given = getattr(call, name)
        if isinstance(given, Table):  # [head, row, column]
            changed[name] = given._replace(values=spread(given.values, axis - 1, step, folder / name))
        elif given is not None:
            changed[name] = spread(given, axis, step, folder / name)
    return replace(call, **changed)


@pytest.mark.parametrize("lengths", [(35, 36), pytest.param((3, 40), marks=pytest.mark.slow)], ids=str)
@pytest.mark.parametrize("mask", [{"masks": "p"}, pytest.param({"added": "hqk"}, marks=pytest.mark.slow)], ids=str)
@pytest.mark.parametrize(("axis", "step"), [(1, HEADS), (1, NEAR_HEADS), (2, ROWS)])
def test_strides_beyond_32_bits(
    axis: int, step: int, mask: Any, lengths: tuple[int, int], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from tests.triton.ptx.launch import emulate

    emulate(SIZES, monkeypatch)
    call = make_call(torch.bfloat16, lengths=lengths, heads=(3, 3), rows=34, first=-14, **mask)
    hold_to_the_equation(with_spread(call, axis, step, tmp_path))


@pytest.mark.parametrize("sign", [1, -1])
def test_offsets_far_away(sign: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """All but the last that are taken, with the tables about them."""
    from tests.triton.ptx.launch import emulate

    emulate(SIZES, monkeypatch)
    offset = sign * (FARTHEST - 80)
    first = offset - 10 if sign > 0 else offset + 10
    call = make_call(torch.bfloat16, lengths=(35, 40), offset=offset, first=first, highest=offset + 20, rows=15)
    hold_to_the_equation(call)
