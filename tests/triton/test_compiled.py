"""Every kernel compiles for an H100 or H200 without one, fits its shared memory, and keeps its numbers in registers."""

import os
from dataclasses import replace
from typing import Any

import pytest
import torch

from tests.triton.calls import meta_call
from tests.triton.test_kernels import TABLES

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif("TRITON_INTERPRET" in os.environ, reason="the interpreter's kernels cannot be compiled"),
]

SHARED_MEMORY = 227 * 1024
LENGTH = 4096
CALLS = {
    "no table": meta_call(length=LENGTH),
    "relative keys": meta_call(("relative_keys",), 2 * LENGTH - 1, length=LENGTH),
    "clipped relative keys and values": meta_call(("relative_keys", "relative_values"), 33, length=LENGTH),
    "a bias": meta_call(("bias",), 129, length=LENGTH),
    "relative keys in float32": meta_call(("relative_keys",), 33, length=LENGTH, dtype=torch.float32),
    "one relative key": meta_call(("relative_keys",), 1, length=LENGTH),
    "wide relative keys": meta_call(("relative_keys",), 33, length=LENGTH, width=256),
}
SPILLED = 256
"""Bytes a thread, beside the 1020 in registers. Seen: none in most, and up to 128."""


@pytest.mark.parametrize("name", CALLS)
def test_kernels_compile_for_hopper(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """In each of the sizes that would be timed, of which the first, the one that is taken untimed, fits."""
    from relattn.backends.triton import backward, forward, sizes, tables
    from tests.triton.compiled import compiled

    launched = []
    for module in (forward, backward, tables):
        monkeypatch.setattr(module, "launch", lambda kernel, call, programs, given: launched.append((kernel, given)))
    call = CALLS[name]
    output, lse = forward.forward(call)
    backward.backward(call, output, lse, output, lse)
    kernels = ["forward_kernel", "queries_kernel", "keys_kernel"] + (["tables_kernel"] if name != "no table" else [])
    assert [kernel.__name__ for kernel, _ in launched] == kernels
    width = call.query.shape[3]
    for kernel, given in launched:
        fits = []
        for tile, warps, stages in sizes.candidates(call):
            cost = compiled(kernel, given, {"D": width, "DV": width, "DR": width, "TILE": tile}, warps, stages)
            print(kernel.__name__, (tile, warps, stages), cost)
            assert cost.spilled <= SPILLED, (kernel.__name__, (tile, warps, stages), cost)
            assert not cost.atomics, "sums would be added in another order each time"
            fits.append(cost.shared <= SHARED_MEMORY)
        assert fits[0], kernel.__name__


def mask_of(*shape: int) -> torch.Tensor:
    return torch.empty(shape, dtype=torch.bool, device="meta")


def numbers(*shape: int) -> torch.Tensor:
    return torch.empty(shape, dtype=torch.int64, device="meta")


LOOKED_UP = {
    "key_mask": mask_of(4, LENGTH), "query_segments": numbers(4, LENGTH), "key_segments": numbers(4, LENGTH),
    "pair_mask": mask_of(4, 1, LENGTH, LENGTH), "dropout_p": 0.1, "seed": numbers(), "lowest": -300,
}  # fmt: skip
BRANCHES = {
    "everything": meta_call(TABLES, 33, length=LENGTH, **LOOKED_UP),
    "a relative query of its own": meta_call(
        TABLES, 33, length=LENGTH, relative_query=torch.empty(4, 16, LENGTH, 64, dtype=torch.bfloat16, device="meta")
    ),
    "whole tables": meta_call(TABLES, 2 * LENGTH - 1, length=LENGTH, highest=None),
    "one row": meta_call(TABLES, 1, length=LENGTH),
    "one position": meta_call(TABLES, 33, length=1),
}


@pytest.mark.parametrize("name", BRANCHES)
def test_every_branch_compiles(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """In small tiles, with heads that share keys, and tables that end in their edge rows or in nothing.

    The interpreter does not show what fails to compile; an argument that is 1, for instance, is a constant here.
    """
    from relattn.backends.triton import backward, decoding, forward, tables
    from tests.triton.compiled import compiled

    call = BRANCHES[name]
    shared = {part: getattr(call, part)[:, ::4] for part in ("key", "value")}
    zero = {table: getattr(call, table)._replace(zero=True) for table in TABLES}
    launched: list[tuple[Any, ...]] = []
    monkeypatch.setattr(decoding, "part_kernel", Recorder(decoding.part_kernel))
    monkeypatch.setattr(decoding, "merge_kernel", Recorder(decoding.merge_kernel))
    for module in (forward, backward, tables):
        monkeypatch.setattr(module, "launch", lambda kernel, call, programs, given: launched.append((kernel, given)))
    for one in (call, replace(call, **shared), replace(call, **zero)):
        launched.clear()
        output, lse = forward.forward(one)
        backward.backward(one, output, lse, output, lse)
        for kernel, given in launched:
            assert not compiled(kernel, given, {"D": 64, "DV": 64, "DR": 64, "TILE": 16}, 4, 1).atomics


@pytest.mark.parametrize("changes", [{}, {"lowest": -300, "dropout_p": 0.1, "seed": numbers()}], ids=str)
@pytest.mark.parametrize("tables", [(), ("relative_keys",), TABLES], ids=str)
def test_decoding_compiles_for_hopper(
    tables: tuple[str, ...], changes: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """One query over 8192 keys, and the merging of its parts."""
    from relattn.backends.triton import decoding
    from tests.triton.compiled import compiled

    part, merge = Recorder(decoding.part_kernel), Recorder(decoding.merge_kernel)
    monkeypatch.setattr(decoding, "part_kernel", part)
    monkeypatch.setattr(decoding, "merge_kernel", merge)
    key = torch.empty(4, 4, 8192, 64, dtype=torch.bfloat16, device="meta")
    decoding.few_queries(meta_call(tables, 33, length=1, key=key, value=key, offset=8191, **changes))
    for one in (part, merge):
        cost = compiled(one.kernel, one.arguments, one.constants, warps=4, stages=3)
        print(tables, cost)
        assert cost.spilled == cost.atomics == 0
        assert cost.shared <= SHARED_MEMORY


class Recorder:
    """In place of a kernel: notes what it is launched with."""

    def __init__(self, kernel: Any) -> None:
        self.kernel = kernel

    def __getitem__(self, grid: tuple[int]):
        def run(*arguments: object, **constants: int) -> None:
            self.arguments, self.constants = arguments, constants

        return run
