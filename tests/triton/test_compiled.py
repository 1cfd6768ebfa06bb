"""Every kernel compiles for an H100 or H200 without one, fits its shared memory, and keeps its numbers in registers."""

import os

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
            fits.append(cost.shared <= SHARED_MEMORY)
        assert fits[0], kernel.__name__


@pytest.mark.parametrize("tables", [(), ("relative_keys",), TABLES], ids=str)
def test_decoding_compiles_for_hopper(tables: tuple[str, ...], monkeypatch: pytest.MonkeyPatch) -> None:
    """One query over 8192 keys, in the size that is taken untimed; and the merging of its parts."""
    from relattn.backends.triton import decoding, sizes
    from tests.triton.compiled import compiled

    launched = []
    monkeypatch.setattr(decoding, "launch", lambda kernel, call, programs, given: launched.append(given))
    merge = Recorder()
    monkeypatch.setattr(decoding, "merge_kernel", merge)
    key = torch.empty(4, 16, 8192, 64, dtype=torch.bfloat16, device="meta")
    call = meta_call(tables, 33, length=1, key=key, value=key, offset=8191)
    decoding.few_queries(call)
    tile, warps, stages = sizes.candidates(call)[0]
    constants = {"D": 64, "DV": 64, "DR": 64, "TILE": tile}
    for cost in (
        compiled(decoding.part_kernel, *launched, constants, warps, stages),
        compiled(merge.kernel, merge.arguments, merge.constants, warps=4, stages=3),
    ):
        print(tables, cost)
        assert cost.spilled == 0
        assert cost.shared <= SHARED_MEMORY


class Recorder:
    """In place of the kernel that merges: notes what it is launched with."""

    def __init__(self) -> None:
        from relattn.backends.triton.decoding import merge_kernel

        self.kernel = merge_kernel

    def __getitem__(self, grid: tuple[int]):
        def run(*arguments: object, **constants: int) -> None:
            self.arguments, self.constants = arguments, constants

        return run
