"""Walks that begin and end where the masks that are data let something be seen: the numbers, and the tiles walked."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from relattn.backends.triton.host.call import Call
from tests.contract.cases import CASES as ENCODINGS
from tests.contract.padding import WAYS, assert_padding_does_not_matter
from tests.triton import INTERPRETED, everywhere
from tests.triton.calls import launching, with_ranges
from tests.triton.test_kernels import hold_to_the_equation, in_order, make_call, random_cotangents, run, visible

pytest.importorskip("triton", reason="Triton is a package for Linux")
pytest_plugins = ["tests.contract.fresh"]

TILE = 16
"""The tiles of the interpreter."""


@pytest.fixture(autouse=True)
def on_device(device: str, rng):
    """Fresh tensors lie on the device of the test."""
    with torch.device(device):
        yield


def ids(*lengths: int) -> Tensor:
    """Of documents of these lengths, one after the other."""
    return torch.repeat_interleave(torch.arange(len(lengths)), torch.tensor(lengths))


def documents(*rows: tuple[int, ...]) -> dict[str, Any]:
    """One row of documents for each batch element, for queries and keys."""
    of_rows = torch.stack([ids(*lengths) for lengths in rows])
    return {"query_segments": of_rows, "key_segments": of_rows}


def padded(length: int, *kept: tuple[int, int]) -> dict[str, Any]:
    """The keys from .. to - 1 of each batch element are kept."""
    place = torch.arange(length)
    return {"key_mask": torch.stack([(place >= first) & (place < end) for first, end in kept])}


def in_blocks(*lengths: int, dtype: torch.dtype = torch.bool) -> dict[str, Any]:
    """A mask of pairs [1, 1, L, L]: documents of these lengths see themselves alone; the first query sees nothing."""
    seen = ids(*lengths)[:, None] == ids(*lengths)[None, :]
    seen[0] = False
    if dtype == torch.bool:
        return {"explicit_mask": seen[None, None]}
    return {"explicit_mask": torch.randn(seen.shape, dtype=dtype).masked_fill(~seen, -torch.inf)[None, None]}


LENGTH = 80
SQUARE = {"lengths": (LENGTH, LENGTH), "offset": 0, "batch": 2, "widths": (16, 16, 16)}
LISTED = {"lengths": (50, 50), "offset": 0, "batch": 2, "widths": (16, 16, 16), "tables": ()}
MASKS: dict[str, tuple[dict[str, Any], Callable[[], dict[str, Any]]]] = {
    "documents, every table": (SQUARE, lambda: documents((40, 23, 17), (9, 71))),
    "documents, causal": (SQUARE | {"tables": ("relative_keys",), "highest": 0}, lambda: documents((30, 50), (64, 16))),
    "documents, a window": (
        SQUARE | {"tables": ("relative_queries", "bias"), "lowest": -9, "highest": 4},
        lambda: documents((30, 50), (17, 63)),
    ),
    "documents that come back": (
        SQUARE | {"tables": ("relative_values",)},
        lambda: {name: each % 2 for name, each in documents((20, 20, 20, 20), (30, 10, 40)).items()},
    ),
    "documents and padding, groups of heads": (
        SQUARE | {"heads": (4, 2), "tables": ("relative_keys",)},
        lambda: documents((40, 40), (25, 55)) | padded(LENGTH, (5, 70), (0, 80)),
    ),
    "padding on the right, and all of it": (SQUARE, lambda: padded(LENGTH, (0, 30), (0, 0))),
    "padding on the left, rows that see nothing": (
        SQUARE | {"highest": 0, "tables": ("bias",)},
        lambda: padded(LENGTH, (50, 80), (17, 80)),
    ),
    "a mask of blocks": (
        SQUARE | {"lengths": (150, 150), "batch": 1, "tables": ("relative_keys",)},
        lambda: in_blocks(64, 40, 46),
    ),
    "a float mask of blocks": (
        SQUARE | {"lengths": (150, 150), "batch": 1, "heads": (1, 1), "tables": ("bias",)},
        lambda: in_blocks(64, 64, 22, dtype=torch.float32),
    ),
    "few queries": (
        SQUARE | {"lengths": (3, 150), "offset": -147, "highest": 0},
        lambda: {
            "query_segments": torch.tensor([[1, 1, 1], [0, 1, 2]]),
            "key_segments": torch.stack([ids(70, 80), ids(20, 30, 100)]),
        } | padded(150, (0, 149), (33, 150)),
    ),
    "a start that is a tensor": (
        SQUARE | {"offset": torch.tensor(0), "tables": ("relative_keys",), "highest": 0},
        lambda: documents((30, 50), (64, 16)),
    ),
    "rows of other axes": (LISTED | {"axes": ({"number": 1},)}, lambda: documents((30, 20), (17, 33))),
}  # fmt: skip


def call_of(name: str, **changes: Any) -> Call:
    given, mask = MASKS[name]
    return with_ranges(replace(make_call(**{**given, **changes}), **mask()))


@everywhere
@pytest.mark.parametrize("name", MASKS)
def test_output_and_every_gradient(name: str, device: str) -> None:
    hold_to_the_equation(call_of(name))


@everywhere
@pytest.mark.parametrize("name", MASKS)
def test_every_gradient_in_order(name: str, device: str, in_order) -> None:
    hold_to_the_equation(call_of(name))
