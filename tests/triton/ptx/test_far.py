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

from relattn.backends.triton.host.call import FARTHEST, Call, ExplicitAxis, Table
from relattn.positions.explicit import ExplicitPositions
from tests.triton import test_kernels
from tests.triton.test_kernels import TABLES, hold_to_the_equation, make_call, random_cotangents

pytest.importorskip("triton", reason="Triton is a package for Linux")
pytestmark = [
    pytest.mark.ptx,
    pytest.mark.skipif("TRITON_INTERPRET" in os.environ, reason="the interpreter's kernels cannot be compiled"),
]

SIZES = (32, 4, 2)
TENSORS = ("query", "key", "value", "relative_query", "pair_mask", "key_bias", "key_shift")
ROWS = 2**27 + 16
"""Elements from row to row: the last of some 40 is beyond 2^32."""
FAR, NEARER = 2**32 + 16, 2**31 - 16
"""Elements from head to head, or from batch element to batch element: a stride that is itself no number of 32 bits, and
one that is, but not twice it.
"""
BATCH, HEAD, ROW = range(3)  # axes of [batch, head, row, column]
SEVERAL: dict[int, dict[str, Any]] = {
    BATCH: {"batch": 3, "heads": (1, 1)},
    HEAD: {"heads": (3, 3)},
    ROW: {"heads": (3, 3)},
}
"""Places on an axis, enough of them to be far away."""
STRIDES = [
    *(pytest.param(BATCH, step, marks=pytest.mark.slow) for step in (FAR, NEARER)),
    *((HEAD, step) for step in (FAR, NEARER)),
    (ROW, ROWS),
]
EXPLICIT = {"lengths": (35, 36), "widths": (16, 16, 16), "tables": (), "axes": ({"number": 1, "own": 8, "rows": 34,
                                                                           "first": -14},)}  # fmt: skip


def spread(tensor: Tensor, axis: int, step: int, path: Path) -> Tensor:
    """The tensor with so many elements from one place on an axis to the next, in a sparse file."""
    strides = list(tensor.contiguous().stride())
    strides[axis] = step
    size = 1 + sum((length - 1) * stride for length, stride in zip(tensor.shape, strides, strict=True))
    room = torch.from_file(str(path), shared=True, size=size, dtype=tensor.dtype)
    return room.as_strided(tensor.shape, strides).copy_(tensor)


def with_spread(call: Call, axis: int, step: int, folder: Path) -> Call:
    """The call with each of its tensors and tables spread, those of explicit axes, too; axis: of [batch, head, row,
    column].
    """
    changed: dict[str, Any] = _spread_fields(call, (*TENSORS, *TABLES), axis, step, folder)
    changed["axes"] = tuple(_spread_axis(one, axis, step, folder) for one in call.axes)
    return replace(call, **changed)


def _spread_axis(explicit: ExplicitAxis, axis: int, step: int, folder: Path) -> ExplicitAxis:
    """Positions lie side by side, but for those of another batch element."""
    folder = folder / str(explicit.number)
    folder.mkdir()
    changed = _spread_fields(explicit, ("relative_query", *TABLES), axis, step, folder)
    if axis == BATCH:
        assert isinstance(explicit.queries, ExplicitPositions)
        changed["queries"] = ExplicitPositions(spread(explicit.queries.positions, axis, step, folder / "queries"))
    return explicit._replace(**changed)


def _spread_fields(
    of: Call | ExplicitAxis, names: tuple[str, ...], axis: int, step: int, folder: Path
) -> dict[str, Any]:
    changed: dict[str, Any] = {}
    for name in names:
        given = getattr(of, name)
        if isinstance(given, Table):  # [head, row, column]
            if axis > BATCH:
                changed[name] = given._replace(values=spread(given.values, axis - 1, step, folder / name))
        elif given is not None:
            changed[name] = spread(given, axis, step, folder / name)
    return changed


def hold(call: Call, axis: int, step: int, folder: Path, monkeypatch: pytest.MonkeyPatch, ordered: bool) -> None:
    """All that is handed over spread, dO as well, with the kernels of one of the orders."""
    from relattn.backends.triton.kernels import backward
    from tests.triton.ptx.launch import emulate

    def far_cotangents(call: Call) -> tuple[Tensor, Tensor]:
        by_output, by_lse = random_cotangents(call)
        return spread(by_output, axis, step, folder / "by_output"), by_lse

    emulate(SIZES, monkeypatch)
    monkeypatch.setattr(backward, "is_deterministic", lambda call, wanted: ordered)
    monkeypatch.setattr(test_kernels, "random_cotangents", far_cotangents)
    hold_to_the_equation(with_spread(call, axis, step, folder))


@pytest.mark.parametrize("lengths", [(35, 36), pytest.param((3, 40), marks=pytest.mark.slow)], ids=str)
@pytest.mark.parametrize(
    "terms",
    [{"masks": "p"}, pytest.param({"added": "bhqk", "key_bias": True}, marks=pytest.mark.slow)],
    ids=str,
)
@pytest.mark.parametrize(("axis", "step"), STRIDES)
def test_strides_beyond_32_bits(
    axis: int, step: int, terms: Any, lengths: tuple[int, int], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    call = make_call(torch.bfloat16, lengths=lengths, rows=34, first=-14, **SEVERAL[axis], **terms)
    hold(call, axis, step, tmp_path, monkeypatch, ordered=False)


@pytest.mark.slow
@pytest.mark.parametrize(("axis", "step"), STRIDES)
def test_strides_beyond_32_bits_in_a_fixed_order(
    axis: int, step: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A program that sums alone walks over all batch elements, heads and rows."""
    call = make_call(torch.bfloat16, lengths=(35, 36), rows=34, first=-14, masks="p", key_bias=True, **SEVERAL[axis])
    hold(call, axis, step, tmp_path, monkeypatch, ordered=True)


@pytest.mark.slow
@pytest.mark.parametrize("ordered", [False, True])
@pytest.mark.parametrize(("axis", "step"), STRIDES)
def test_strides_of_lists_beyond_32_bits(
    axis: int, step: int, ordered: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An axis with its own r and every table, and positions of each batch element."""
    hold(make_call(torch.bfloat16, **EXPLICIT, **SEVERAL[axis]), axis, step, tmp_path, monkeypatch, ordered)


@pytest.mark.parametrize("sign", [1, -1])
def test_offsets_far_away(sign: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """All but the last that are taken, with the tables about them."""
    from tests.triton.ptx.launch import emulate

    emulate(SIZES, monkeypatch)
    offset = sign * (FARTHEST - 80)
    first = offset - 10 if sign > 0 else offset + 10
    call = make_call(torch.bfloat16, lengths=(35, 40), offset=offset, first=first, highest=offset + 20, rows=15)
    hold_to_the_equation(call)
