"""What an H100 is given that other GPUs are not: found on one, held to here by Triton's compiler."""

import os
import re
from collections.abc import Iterator
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
import torch

pytest.importorskip("triton", reason="Triton is a package for Linux")

from relattn.backends.triton.host import tile_configs
from relattn.backends.triton.host.call import Call
from relattn.equation.problem import TABLES
from tests.triton.calls import every_gradient_of, meta_axis, meta_call, numbers, some_gradients_of

compiling = pytest.mark.skipif("TRITON_INTERPRET" in os.environ, reason="the interpreter's kernels cannot be compiled")
HOPPER = tile_configs.HOPPER
BF16, F16, F32 = torch.bfloat16, torch.float16, torch.float32
KEYS, VALUES, QUERIES = TABLES[:1], TABLES[:3:2], TABLES[:2]


def call_of(widths: tuple[int, int, int], tables: tuple[str, ...], dtype: torch.dtype, of_tables: torch.dtype) -> Call:
    """widths: of q, v and r."""
    width, of_values, of_r = widths
    call = meta_call(tables, 33, width=width, dtype=dtype, highest=None)
    changed: dict[str, Any] = {"value": call.value.new_empty(*call.value.shape[:3], of_values)}
    if of_r != width:
        changed["relative_query"] = call.query.new_empty(*call.query.shape[:3], of_r)
    of = {"relative_keys": of_r, "relative_queries": width, "relative_values": of_values}
    for name in tables:
        values = getattr(call, name).values
        values = values.new_empty(*values.shape[:2], of[name]) if name in of else values
        changed[name] = getattr(call, name)._replace(values=values.to(of_tables))
    return replace(call, **changed)


def texts(call: Call, name: str) -> Iterator[tuple[tile_configs.TileConfig, dict[str, str]]]:
    """The sizes that a kernel is given, and what it is compiled to."""
    from triton.backends.compiler import GPUTarget

    from measure.triton_compiled import constants_of, kernels
    from tests.triton.compiled import compiled_for

    launch, target = kernels(call, HOPPER)[name], GPUTarget("cuda", HOPPER, 32)
    for size in tile_configs.tile_configs(launch.kernel.__name__, call, HOPPER):
        constants = constants_of(launch, call, size)
        result = compiled_for(target, launch.kernel, launch.given, constants, size.warps, size.stages)
        yield size, result.asm


A_FLOAT_MASK = {"pair_mask": torch.empty(1, 1, 4096, 4096, dtype=BF16, device="meta")}
AN_AXIS = {"axes": (meta_axis(1, 33),)}
UNEVEN: dict[str, tuple[Call, tuple[str, ...]]] = {
    "16 features beside float32 tables": (call_of((16, 16, 16), KEYS, F16, F32), ("forward", "backward")),
    "values of other widths": (call_of((16, 64, 16), VALUES, BF16, BF16), ("forward", "backward", "keys, in order")),
    "r of another width": (call_of((64, 64, 24), QUERIES, BF16, BF16), ("forward", "backward", "tables, in order")),
    "float32 beside bfloat16": (call_of((64, 64, 64), VALUES, BF16, F32), ("forward", "backward")),
    "float32 beside float16": (call_of((64, 64, 64), VALUES, F16, F32), ("forward", "backward")),
    "128 beside 64": (call_of((64, 128, 64), VALUES, BF16, BF16), ("forward", "backward")),
    "24 features": (call_of((24, 24, 24), TABLES, BF16, BF16), ("forward", "backward")),
    "a float mask": (
        replace(call_of((24, 64, 24), (), BF16, BF16), **A_FLOAT_MASK), ("backward", "keys, in order", "mask")
    ),
    "a float mask beside two tables": (
        replace(call_of((64, 24, 64), VALUES, BF16, BF16), **A_FLOAT_MASK), ("backward",)
    ),
    "another axis": (replace(call_of((64, 24, 64), VALUES, BF16, BF16), **AN_AXIS), ("backward",)),
}  # fmt: skip
"""Calls, and the kernels of theirs that are compiled."""


def lengths_of(text: str) -> set[str]:
    """How many bytes the rows have that products read by descriptors."""
    return set(re.findall(r"nvmma_shared<\{swizzlingByteWidth = (\d+)", text))


@pytest.mark.slow
@compiling
@pytest.mark.parametrize(
    "name", [name if name.startswith("16") else pytest.param(name, marks=pytest.mark.slow) for name in UNEVEN]
)
def test_products_read_rows_of_one_length(name: str) -> None:
    """ptxas 12.8 loses descriptors where rows of two lengths have stood at one place."""
    call, names = UNEVEN[name]
    for kernel in names:
        for size, text in texts(call, kernel):
            assert len(lengths_of(text["ttgir"])) <= 1, f"{kernel}, {size}"


@compiling
def test_lengths_are_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    """In tiles of 64, which such a call is not given."""
    monkeypatch.setattr(tile_configs, "tile_configs", lambda kernel, call, arch: [tile_configs.TileConfig(64, 4, 2)])
    ((_, text),) = texts(call_of((24, 64, 24), (), BF16, BF16), "backward")
    assert lengths_of(text["ttgir"]) == {"64", "128"}


@compiling
@pytest.mark.slow
@pytest.mark.parametrize("kernel", ["forward", "backward", "keys, in order"])
@pytest.mark.parametrize("tables", [KEYS, ("bias",)])
def test_narrow_products_are_not_repeated(tables: tuple[str, ...], kernel: str) -> None:
    from measure.triton_compiled import cost_of, kernels, untimed

    call = call_of((24, 24, 24), tables, BF16, BF16)
    launch = kernels(call, HOPPER)[kernel]
    first = untimed(launch, call, HOPPER)
    cost = cost_of(launch, call, first, HOPPER)
    assert not cost.repeated and cost.spilled <= 256, (first, cost)


@pytest.mark.parametrize(("arch", "expected"), [(HOPPER, True), (80, False), (100, False)])
def test_the_fixed_order_is_taken_where_it_is_faster(
    arch: int, expected: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    from relattn.backends.triton.kernels import backward

    monkeypatch.setattr(backward, "architecture_of", lambda call: arch)
    call = meta_call(("bias",), 33, width=128)
    assert backward.is_deterministic(call, every_gradient_of(call)) == expected
    assert not backward.is_deterministic(replace(call, softcap=30.0), every_gradient_of(call))
    shared = replace(call, key=call.key[:, :2], value=call.value[:, :2])
    assert not backward.is_deterministic(shared, every_gradient_of(call)), "heads share keys"


@pytest.mark.parametrize(
    ("rows", "width", "wanted", "expected"),
    [(512, 64, TABLES, True), (513, 64, TABLES, False), (513, 64, ("query",), True), (8191, 128, TABLES, True)],
)
def test_the_gradient_by_many_rows_of_a_bias(rows: int, width: int, wanted: tuple[str, ...], expected: bool) -> None:
    call = meta_call(("bias",), rows, width=width)
    assert tile_configs.is_always_deterministic(call, HOPPER, some_gradients_of(call, wanted)) == expected


@compiling
@pytest.mark.slow
@pytest.mark.parametrize(("tables", "additions"), [((), 16), (KEYS, 32)])
def test_an_instruction_adds_four_numbers(tables: tuple[str, ...], additions: int) -> None:
    """dv and dk of a tile [64, 64] are 4096 numbers each, of 128 threads; with relative keys dRK is added in the loop,
    and once behind it.
    """
    call = meta_call(tables, 8191)  # heads that share keys: else it is summed in order without a table
    call = replace(call, key=call.key[:, :4], value=call.value[:, :4])
    sizes = dict(texts(call, "backward"))
    text = sizes[tile_configs.TileConfig(64, 4, 2)]["ptx"]
    assert len(re.findall(r"(?:atom|red)\.global\.gpu\.relaxed\.add\.v4\.f32", text)) == additions
    assert not re.findall(r"(?:atom|red)\.global\.gpu\.relaxed\.add\.f32", text)


def sizes_of(kernel: str, *tables: str, rows: int = 33, width: int = 64, **given: Any) -> list[tuple[int, ...]]:
    call = meta_call(tables, rows, width=width, **given)
    return [size[:3] for size in tile_configs.tile_configs(kernel, call, HOPPER)]


def test_sizes_that_were_measured() -> None:
    assert sizes_of("forward_kernel", "relative_keys", rows=4096) == [(64, 4, 2), (64, 4, 3)]
    assert sizes_of("queries_kernel", "relative_keys", rows=4096) == [(32, 4, 2), (64, 4, 2)]
    assert sizes_of("queries_kernel", *VALUES) == [(32, 4, 2), (64, 4, 1)]
    assert sizes_of("forward_kernel", *VALUES, width=128) == [(32, 4, 2), (64, 4, 1)]
    assert sizes_of("forward_kernel", "relative_keys", width=24) == [(32, 2, 2)]
    assert sizes_of("queries_kernel", *TABLES) == [(16, 2, 2), (32, 4, 2)], "as elsewhere"
    assert sizes_of("forward_kernel", "bias", dropout_p=0.1, seed=numbers()) == [(32, 4, 2), (64, 4, 2)]


IN_ORDER = {
    (None, 1, 64): ((4, 3), (4, 2), (4, 2), (8, 2)),
    ("bias", 33, 64): ((4, 2), (4, 2), (4, 2), (8, 2)),
    ("bias", 8191, 128): ((4, 2), (4, 2), (4, 2), (8, 2)),
    ("relative_keys", 33, 64): ((4, 3), (4, 2), (4, 1), (4, 2)),
    ("relative_keys", 512, 64): ((4, 3), (4, 2), (4, 1), (4, 2)),
    ("relative_keys", 8191, 128): ((4, 1), (4, 1), (4, 1), (4, 2)),
}
"""Warps and stages of tiles of 64, for the passes forward, of dq, of dk and dv, and of the tables."""


@pytest.mark.parametrize("kind", IN_ORDER, ids=str)
def test_one_size_in_the_fixed_order(kind: tuple[str | None, int, int]) -> None:
    table, rows, width = kind
    given = () if table is None else (table,)
    call = meta_call(given, rows, width=width)
    assert tile_configs.is_faster_deterministic_on_hopper(call)
    for kernel, (warps, stages) in zip(("forward", "queries", "keys", "tables"), IN_ORDER[kind], strict=True):
        assert sizes_of(f"{kernel}_kernel", *given, rows=rows, width=width) == [(64, warps, stages)]
    tables = SimpleNamespace(__name__="tables_kernel")
    elsewhere, here = (tile_configs.tiles_of_a_program(tables, call, 2**16, arch) for arch in (80, HOPPER))
    assert elsewhere == (2 if width == 64 else 1)
    assert here == (1 if table == "relative_keys" else elsewhere)


@pytest.mark.parametrize(
    ("tables", "given"),
    [
        (("relative_keys",), {"rows": 513}),
        (("relative_keys",), {"lowest": -126}),
        (("relative_keys", "bias"), {"width": 128}),
        (("relative_values",), {"width": 128}),
        (("bias",), {"width": 256}),
        (("bias",), {"width": 24}),
        (("bias",), {"width": 128, "softcap": 30.0}),
        (("bias",), {"width": 128, "dropout_p": 0.1, "seed": numbers()}),
        (("bias",), {"width": 128, "dtype": F32}),
    ],
)
def test_other_calls_add_across_programs(tables: tuple[str, ...], given: dict[str, Any]) -> None:
    given = {"rows": 33} | given
    assert not tile_configs.is_faster_deterministic_on_hopper(meta_call(tables, **given))


@pytest.mark.parametrize("width", [64, 128])
def test_relative_keys_in_float32_beside_half_precision_add_across_programs(width: int) -> None:
    call = meta_call(KEYS, 33, width=width)
    assert call.relative_keys is not None and tile_configs.is_faster_deterministic_on_hopper(call)
    wider = call.relative_keys._replace(values=call.relative_keys.values.float())
    assert not tile_configs.is_faster_deterministic_on_hopper(replace(call, relative_keys=wider))
