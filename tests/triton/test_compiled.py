"""Every kernel compiles for an H100 or H200 without one, fits its shared memory, and keeps its numbers in registers."""

from __future__ import annotations

import os
from typing import Any

import pytest
import torch

from relattn.backends.triton.call import Call, Table

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif("TRITON_INTERPRET" in os.environ, reason="the interpreter's kernels cannot be compiled"),
]

SHARED_MEMORY = 227 * 1024
BATCH, HEADS, LENGTH, WIDTH = 4, 16, 4096, 64


def meta_call(tables: tuple[str, ...], rows: int) -> Call:
    """A causal call of tensors without memory."""
    query, key, value = (
        torch.empty(BATCH, HEADS, LENGTH, WIDTH, dtype=torch.bfloat16, device="meta") for _ in range(3)
    )
    shape = (HEADS, rows, WIDTH)
    found = {name: Table(query.new_empty(shape[: 2 if name == "bias" else 3]), -(rows // 2), False) for name in tables}
    absent: dict[str, Any] = dict.fromkeys((
        "relative_keys", "relative_queries", "relative_values", "bias",
        "lowest", "key_mask", "query_segments", "key_segments", "pair_mask", "seed",
    ))  # fmt: skip
    relative_query = query if "relative_keys" in tables else None
    given = absent | found | {"offset": 0, "highest": 0, "scale": 0.125, "dropout_p": 0.0}
    return Call(query=query, key=key, value=value, relative_query=relative_query, **given)


CALLS = {
    "no table": meta_call((), 1),
    "relative keys": meta_call(("relative_keys",), 2 * LENGTH - 1),
    "clipped relative keys and values": meta_call(("relative_keys", "relative_values"), 33),
    "a bias": meta_call(("bias",), 129),
}


@pytest.mark.parametrize("name", CALLS)
def test_kernels_compile_for_hopper(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
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
    tile, warps, stages = sizes.HALF[0]
    for kernel, given in launched:
        constants = {"D": WIDTH, "DV": WIDTH, "DR": WIDTH, "TILE": tile}
        cost = compiled(kernel, given, constants, warps, stages)
        print(name, kernel.__name__, cost)
        assert cost.shared <= SHARED_MEMORY, (kernel.__name__, cost)
        assert cost.spilled <= 64, (kernel.__name__, cost)  # a few numbers a thread


class Greedy:
    """A kernel whose tiles of more than 32 rows do not fit."""

    def __init__(self) -> None:
        self.tried: list[int] = []

    def __getitem__(self, grid: tuple[int]):
        def run(*arguments: object, TILE: int, **constants: object) -> None:
            self.tried.append(TILE)
            if TILE > 32:
                from triton.runtime.errors import OutOfResources

                raise OutOfResources(10**6, SHARED_MEMORY, "shared memory")

        return run


def test_tiles_shrink_until_they_fit_and_that_is_remembered() -> None:
    from relattn.backends.triton.sizes import launch

    kernel, call = Greedy(), CALLS["no table"]
    launch(kernel, call, lambda tile: 1, ())
    launch(kernel, call, lambda tile: 1, ())
    assert kernel.tried == [64, 64, 32, 32]
