"""Every kernel compiles for each generation of GPUs, fits its memory, and keeps its numbers in registers. None runs."""

import json
import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from relattn.backends.triton.host.call import Table
from tests.triton.calls import SHARED_MEMORY, meta_axis, meta_call, numbers
from tests.triton.test_kernels import TABLES

TRITON = pytest.importorskip("triton", reason="Triton is a package for Linux").__version__
tile_configs = pytest.importorskip("relattn.backends.triton.host.tile_configs", reason="Triton is a package for Linux")
pytestmark = pytest.mark.skipif("TRITON_INTERPRET" in os.environ, reason="the interpreter's kernels cannot be compiled")

LENGTH = 4096
SPILLED = 256
"""Bytes per thread, at most, beside the 1020 in registers."""
SPILLED_MORE = {("relative keys", 128, "bfloat16", "keys, in order", 90): 276}
"""The rows of the table that spill more."""
TABLE = Path("measure/results/triton/compiled.json")
TABLE_OF = "3.7."
"""The Triton that compiled what the table tells. Another one brings another assembler, which takes other registers."""
COMPILED_FOR = {
    ("no table", 64, "bfloat16"): 90, ("relative keys", 64, "bfloat16"): tuple(SHARED_MEMORY),
    ("clipped relative keys", 64, "bfloat16"): 90, ("clipped relative keys and values", 64, "bfloat16"): 80,
    ("relative keys and queries", 64, "bfloat16"): 80, ("a bias", 64, "bfloat16"): 90,
    ("relative keys, a float mask", 64, "bfloat16"): 90, ("relative keys, a start as a tensor", 64, "bfloat16"): 80,
    ("explicit: every table", 64, "bfloat16"): 80, ("no table, dropout", 64, "bfloat16"): 80,
    ("relative keys, dropout", 64, "bfloat16"): 90, ("clipped relative keys and values", 128, "bfloat16"): 80,
    ("relative keys", 128, "bfloat16"): 90, ("a bias", 128, "bfloat16"): 90, ("relative keys", 256, "bfloat16"): 90,
    ("relative keys", 64, "float32"): 80, ("relative keys", 256, "float32"): 80, ("no table", 64, "tf32x3"): 90,
    ("a bias", 64, "tf32x3"): 80,
}  # fmt: skip
"""The workloads of the committed table that are compiled again, each for one generation, one for all: more takes too
long. 80 is the oldest; an H100, 90, is the first whose tensor cores read shared memory, and takes the
deterministic kernels of some by itself. Of 80, 86 and 89 the compiler writes the same PTX; what the assembler makes of
it differs in registers.
"""
ATOMIC = ("backward",)
"""The kernel that adds atomically."""
COMPILED = [
    (workload, capability)
    for workload, given in COMPILED_FOR.items()
    for capability in (given if isinstance(given, tuple) else [given])
]
COUNTED = ("relative keys", 64, "bfloat16")
PRODUCTS = {"forward": 3, "backward": 8, "queries, in order": 5, "keys, in order": 11, "tables, in order": 10}
"""Of two tiles, with relative keys, for each step of the walk; the last two take two tiles in a step. docs/triton.md
counts them.
"""


def hold(row: dict[str, Any], room: int) -> None:
    """What is promised of the size that is taken untimed; room: the chip's shared memory, in KiB."""
    assert row["shared"] <= room * 1024, row
    assert (row["atomics"] > 0) == (row["kernel"] in ATOMIC), "sums would be added in another order each time"
    assert row["repeated"] == 0, row
    if TRITON.startswith(TABLE_OF):
        place = tuple(row[name] for name in ("tables", "width", "dtype", "kernel", "capability"))
        assert row["spilled"] <= SPILLED_MORE.get(place, SPILLED), row
    if (row["tables"], row["width"], row["dtype"]) == COUNTED:
        assert row["products"] == PRODUCTS[row["kernel"]], row


@pytest.mark.slow
@pytest.mark.parametrize(("workload", "capability"), COMPILED, ids=str)
def test_the_size_that_is_taken_untimed(workload: tuple[str, int, str], capability: int) -> None:
    from measure.triton_compiled import kernels as kernels_of
    from measure.triton_compiled import row_of, workloads

    call = next(call for *place, call in workloads() if tuple(place) == workload)
    committed = [row for row in json.loads(TABLE.read_text()) if row["capability"] == capability]
    for name, launch in kernels_of(call, capability).items():
        row = row_of(workload, name, launch, call, capability)
        print(row)
        hold(row, SHARED_MEMORY[capability])
        if TRITON.startswith(TABLE_OF):
            assert row in committed, "what a call does not have costs it no register"


SECOND = [("no table", 64), ("relative keys", 64), ("a bias", 64), ("relative keys", 128)]
TOO_LARGE_FOR = {("relative keys", 128, "queries_kernel", 86)}
"""Second candidates that a chip has no room for: they are tried, and passed over."""


@pytest.mark.slow
@pytest.mark.parametrize("capability", [80, 86, 90])
@pytest.mark.parametrize(("tables", "width"), SECOND)
def test_the_size_that_is_tried_beside_it(tables: str, width: int, capability: int) -> None:
    """It fits the chip or is known not to, and computes nothing twice. In order an H100 has no second."""
    from measure.triton_compiled import CALLS, cost_of, launches

    call = CALLS[tables](width=width)
    has_one = capability == tile_configs.HOPPER and tile_configs.is_faster_deterministic_on_hopper(call)
    for launch in launches(call, False, capability):
        several = tile_configs.tile_configs(launch.kernel.__name__, call, capability)
        assert len(several) == (1 if has_one else 2)
        size = several[-1]
        cost = cost_of(launch, call, size, capability)
        print(tables, width, launch.kernel.__name__, size, cost)
        assert not cost.repeated
        fits = cost.shared <= SHARED_MEMORY[capability] * 1024
        assert fits != ((tables, width, launch.kernel.__name__, capability) in TOO_LARGE_FOR)


def texts_of(tables: str, kernel: str, **given: Any) -> dict[str, str]:
    """What Triton makes of a kernel for sm_80, in the size that is taken untimed."""
    from triton.backends.compiler import GPUTarget

    from measure.triton_compiled import CALLS, constants_of, untimed
    from measure.triton_compiled import kernels as kernels_of
    from tests.triton.compiled import compiled_for

    call = CALLS[tables](**given)
    launch = kernels_of(call, 80)[kernel]
    size = untimed(launch, call, 80)
    constants = constants_of(launch, call, size)
    target = GPUTarget("cuda", 80, 32)
    result = compiled_for(target, launch.kernel, launch.given, constants, size.warps, size.stages, call.precision)
    return result.asm


@pytest.mark.slow
@pytest.mark.parametrize(
    ("tables", "given", "kernel", "products"),
    [
        ("clipped relative keys", {}, "forward", [2, 2, 3]),
        ("clipped relative keys", {}, "backward", [5, 5, 8]),
        ("clipped relative keys", {}, "keys, in order", [8, 8, 11]),
        ("a bias", {}, "keys, in order", [4, 4, 4]),
        ("a bias", {}, "backward", [5, 5, 5]),
        ("a bias", {"dtype": torch.float32, "precision": "tf32x3"}, "backward", [5]),
    ],
)
def test_tiles_beyond_a_clipped_table_have_no_products_with_it(
    tables: str, given: dict[str, Any], kernel: str, products: list[int]
) -> None:
    """The loops before its rows, after them, and along them; one where float32 is multiplied in parts."""
    from tests.triton.compiled import products_in_its_loops

    assert products_in_its_loops(texts_of(tables, kernel, **given)["ttir"]) == products


@pytest.mark.slow
@pytest.mark.parametrize("kernel", ["forward", "backward"])
def test_tiles_beyond_a_clipped_bias_read_one_number(kernel: str) -> None:
    """Along its rows a number for each pair."""
    from tests.triton.compiled import counted_in_its_loops

    text = texts_of("a bias", kernel)["ttir"]
    assert counted_in_its_loops(text, r"tt\.load .*: !tt\.ptr<bf16>") == [1, 1, 0]
    assert counted_in_its_loops(text, r"tt\.load .*: tensor<(\d+)x(\1|64)x!tt\.ptr<bf16>>") == [2, 2, 2], "k and v"
    assert counted_in_its_loops(text, r"elementwise_inline_asm .*ld\.global\.b16") == [0, 0, 2], "compared, and not"


@pytest.mark.slow
@pytest.mark.parametrize(("kernel", "rows"), [("forward", [2, 2, 3]), ("backward", [2, 2, 4])])
def test_rows_are_copied_while_the_tile_before_is_computed(kernel: str, rows: list[int]) -> None:
    """Those of k and v, and along the rows of a clipped table its own, for r . RK and for dr."""
    from tests.triton.compiled import counted_in_its_loops

    text = texts_of("clipped relative keys", kernel)["ttgir"]
    assert counted_in_its_loops(text, "async_copy_global_to_local") == rows
    assert counted_in_its_loops(text, r"tt\.load ") == [0, 0, 0]


def test_rows_of_lists_are_multiplied_as_matrices() -> None:
    """q . k and P . v in the walk over keys, and in a loop inside of it a product with a block of the table."""
    from tests.triton.compiled import products_in_its_loops

    assert products_in_its_loops(texts_of("explicit: relative keys", "forward")["ttir"]) == [2, 1]


def test_the_table_that_is_committed() -> None:
    """Every generation, kind and kernel is in it, in the sizes of today."""
    from measure.triton_compiled import kernels as kernels_of
    from measure.triton_compiled import untimed, workloads

    rows = json.loads(TABLE.read_text())
    found = {(row["tables"], row["width"], row["dtype"], row["kernel"], row["capability"]): row for row in rows}
    expected = {
        (*place, name, capability): list(untimed(launch, call, capability)[:3])
        for *place, call in workloads()
        for capability in SHARED_MEMORY
        for name, launch in kernels_of(call, capability).items()
    }
    assert {place: row["size"] for place, row in found.items()} == expected
    for row in rows:
        hold(row, SHARED_MEMORY[row["capability"]])


def mask_of(*shape: int) -> torch.Tensor:
    return torch.empty(shape, dtype=torch.bool, device="meta")


LOOKED_UP = {
    "key_mask": mask_of(4, LENGTH), "query_segments": numbers(4, LENGTH), "key_segments": numbers(4, LENGTH),
    "pair_mask": mask_of(4, 1, LENGTH, LENGTH), "dropout_p": 0.1, "seed": numbers(), "lowest": -300,
}  # fmt: skip
A_BIAS = meta_axis(2, 33)._replace(**dict.fromkeys(TABLES[:3]))
KEYS_AND_BIAS = TABLES[::3]
BRANCHES = {
    "everything": meta_call(TABLES, 33, length=LENGTH, **LOOKED_UP),
    "a relative query of its own": meta_call(
        TABLES, 33, length=LENGTH, relative_query=torch.empty(4, 16, LENGTH, 64, dtype=torch.bfloat16, device="meta")
    ),
    "a cap and a key bias": meta_call(
        TABLES[1:3],
        33,
        length=LENGTH,
        softcap=30.0,
        key_bias=torch.empty(4, 16, LENGTH, device="meta"),
        key_shift=torch.empty(4, 16, LENGTH, device="meta"),
    ),
    "a float mask": meta_call(
        KEYS_AND_BIAS, 33, length=LENGTH,
        pair_mask=torch.empty(1, 16, 1, LENGTH, dtype=torch.bfloat16, device="meta"),
    ),
    "starts as tensors": meta_call(KEYS_AND_BIAS, 33, length=LENGTH, lowest=-300, offset=numbers()),
    "explicit axes": meta_call(TABLES[:1], 33, length=LENGTH, axes=(meta_axis(1, 33, own=24), A_BIAS)),
    "a bias on an axis": meta_call(length=LENGTH, axes=(A_BIAS,)),
    "one row on an axis": meta_call(length=LENGTH, axes=(meta_axis(1, 1),)),
    "an explicit sequence": meta_call((), length=LENGTH, axes=(meta_axis(0, 33, own=64, lowest=-300, highest=0),)),
    "whole tables": meta_call(TABLES, 2 * LENGTH - 1, length=LENGTH, highest=None),
    "one row": meta_call(TABLES, 1, length=LENGTH),
    "one position": meta_call(TABLES, 33, length=1),
}  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("name", BRANCHES)
def test_every_branch_compiles(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """In small tiles. Where they are deterministic heads share keys. Each table ends in nothing in one kind, and in its
    edge rows in the other.

    The interpreter does not show what fails to compile; an argument that is 1, for instance, is a constant here.
    """
    from measure.triton_compiled import launches
    from relattn.backends.triton.kernels import decoding
    from relattn.backends.triton.kernels.backward import queries_kernel
    from tests.triton.compiled import compiled

    call = BRANCHES[name]
    shared = {part: getattr(call, part)[:, ::4] for part in ("key", "value")}
    zero = [
        {table: getattr(call, table)._replace(zero=True) for table in names if getattr(call, table)}
        for names in (TABLES[::2], TABLES[1::2])
    ]
    monkeypatch.setattr(decoding, "split_keys_kernel", Recorder(decoding.split_keys_kernel))
    monkeypatch.setattr(decoding, "merge_kernel", Recorder(decoding.merge_kernel))
    widths = {"D": 64, "DV": 64, "DR": 64}
    for ordered, one in ((True, replace(call, **shared, **zero[0])), (False, replace(call, **zero[1]))):
        for kernel, given, more in launches(one, ordered):
            constants = {**widths, **more, **tile_configs.constants(kernel, tile_configs.SMALLEST)}
            adds = kernel is queries_kernel and not ordered
            assert bool(compiled(kernel, given, constants, 4, 1).atomics) == adds, kernel.__name__


KEYS, VALUES, BIAS = (("relative_keys",), ("relative_values",), ("bias",))
ZERO = {"relative_keys": Table(torch.empty(16, 33, 64, dtype=torch.bfloat16, device="meta"), -16, True)}
SHARED = {part: torch.empty(4, 4, LENGTH, 64, dtype=torch.bfloat16, device="meta") for part in ("key", "value")}
SEVERAL = {
    "relative keys": meta_call(KEYS, 2 * LENGTH - 1, length=LENGTH),
    "clipped keys, values and bias": meta_call((*KEYS, *VALUES, *BIAS), 33, length=LENGTH, highest=None),
    "masks": meta_call(
        KEYS, 33, length=LENGTH, key_mask=mask_of(4, LENGTH), pair_mask=mask_of(4, 1, LENGTH, LENGTH),
        query_segments=numbers(4, LENGTH), key_segments=numbers(4, LENGTH),
    ),
    "a float mask": meta_call(
        KEYS, 33, length=LENGTH, pair_mask=torch.empty(1, 16, 1, LENGTH, dtype=torch.float16, device="meta")
    ),
    "a cap and a key bias": meta_call(
        (*KEYS, *BIAS), 33, length=LENGTH, softcap=30.0,
        key_bias=torch.empty(4, 16, LENGTH, device="meta"), key_shift=torch.empty(4, 16, LENGTH, device="meta"),
    ),
    "a start that is a tensor": meta_call(KEYS, 33, length=LENGTH, lowest=-300, offset=numbers()),
    "zero beyond, heads that share keys": meta_call(KEYS, 33, length=LENGTH, highest=None, **ZERO, **SHARED),
    "48 features in float16": meta_call(KEYS, 33, length=LENGTH, width=48, dtype=torch.float16),
}  # fmt: skip
"""Calls for which programs with several tiles of queries are timed on sm_80."""


@pytest.mark.slow
@pytest.mark.parametrize("name", SEVERAL)
def test_programs_with_several_tiles_of_queries(name: str) -> None:
    """They compile, fit, and compute nothing twice."""
    from measure.triton_compiled import cost_of, launches

    call = SEVERAL[name]
    forward, backward, *_ = launches(call, ordered=False)
    for launch, products in ((forward, 3), (backward, 8)):
        size = tile_configs.tile_configs(launch.kernel.__name__, call, tile_configs.AMPERE)[-1]
        assert (size.groups > 1) == (launch is forward or not call.adds_mask)
        if size.groups > 1:
            cost = cost_of(launch, call, size, tile_configs.AMPERE)
            print(name, size, cost)
            assert cost.shared <= SHARED_MEMORY[tile_configs.AMPERE] * 1024
            assert not cost.repeated
            if name == "relative keys":
                assert cost.products == products and cost.spilled <= 512


@pytest.mark.slow
@pytest.mark.parametrize("changes", [{}, {"lowest": -300, "dropout_p": 0.1, "seed": numbers()}], ids=str)
@pytest.mark.parametrize("tables", [(), ("relative_keys",), TABLES], ids=str)
def test_decoding_compiles_for_hopper(
    tables: tuple[str, ...], changes: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """One query over 8192 keys, and the merging of its parts."""
    from relattn.backends.triton.kernels import decoding
    from tests.triton.compiled import compiled

    part, merge = Recorder(decoding.split_keys_kernel), Recorder(decoding.merge_kernel)
    monkeypatch.setattr(decoding, "split_keys_kernel", part)
    monkeypatch.setattr(decoding, "merge_kernel", merge)
    key = torch.empty(4, 4, 8192, 64, dtype=torch.bfloat16, device="meta")
    decoding.few_queries(meta_call(tables, 33, length=1, key=key, value=key, offset=8191, **changes))
    for one in (part, merge):
        cost = compiled(one.kernel, one.arguments, one.constants, warps=4, stages=3)
        print(tables, cost)
        assert cost.spilled == cost.atomics == 0
        assert cost.shared <= SHARED_MEMORY[90] * 1024


class Recorder:
    """In place of a kernel: notes what it is launched with."""

    def __init__(self, kernel: Any) -> None:
        self.kernel, self.__name__ = kernel, kernel.__name__

    def __getitem__(self, grid: tuple[int]):
        def run(*arguments: object, **constants: int) -> None:
            self.arguments, self.constants = arguments, constants

        return run
