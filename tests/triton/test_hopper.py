"""What an H100 is given that other GPUs are not: found on one, held to here by Triton's compiler."""

import os
import re
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
import torch

pytest.importorskip("triton", reason="Triton is a package for Linux")

from relattn.backends.triton import candidates
from relattn.backends.triton.call import Call
from relattn.score.problem import TABLES
from tests.triton.calls import meta_call, numbers

compiling = pytest.mark.skipif("TRITON_INTERPRET" in os.environ, reason="the interpreter's kernels cannot be compiled")
HOPPER = candidates.HOPPER
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


def texts(call: Call, name: str) -> Iterator[tuple[candidates.Sizes, dict[str, str]]]:
    """The sizes that a kernel is given, and what it is compiled to."""
    from triton.backends.compiler import GPUTarget

    from benchmarks.triton_compiled import constants_of, kernels
    from tests.triton.compiled import compiled_for

    launch, target = kernels(call)[name], GPUTarget("cuda", HOPPER, 32)
    for size in candidates.candidates(launch.kernel.__name__, call, HOPPER):
        constants = constants_of(launch, call, size)
        yield size, compiled_for(target, launch.kernel, launch.given, constants, size.warps, size.stages).asm


UNEVEN = {
    "16 features beside float32 tables": ((16, 16, 16), KEYS, F16, F32),
    "values of other widths": ((16, 64, 16), VALUES, BF16, BF16),
    "r of another width": ((64, 64, 24), QUERIES, BF16, BF16),
    "float32 beside bfloat16": ((64, 64, 64), VALUES, BF16, F32),
    "float32 beside float16": ((64, 64, 64), VALUES, F16, F32),
    "128 beside 64": ((64, 128, 64), VALUES, BF16, BF16),
    "24 features": ((24, 24, 24), TABLES, BF16, BF16),
}


@compiling
@pytest.mark.parametrize("kernel", ["forward", "backward"])
@pytest.mark.parametrize(
    "name", [name if name.startswith("16") else pytest.param(name, marks=pytest.mark.slow) for name in UNEVEN]
)
def test_products_read_rows_of_one_length(name: str, kernel: str) -> None:
    """ptxas 12.8 loses descriptors where rows of two lengths have stood at one place."""
    for size, text in texts(call_of(*UNEVEN[name]), kernel):
        lengths = set(re.findall(r"nvmma_shared<\{swizzlingByteWidth = (\d+)", text["ttgir"]))
        assert len(lengths) <= 1, f"{size}: {lengths}"


@compiling
@pytest.mark.slow
@pytest.mark.parametrize(("tables", "additions"), [((), 16), (KEYS, 32)])
def test_an_instruction_adds_four_numbers(tables: tuple[str, ...], additions: int) -> None:
    """dv and dk of a tile [64, 64] are 4096 numbers each, of 128 threads; with relative keys dRK is added in the loop,
    and once behind it.
    """
    sizes = dict(texts(meta_call(tables, 8191), "backward"))
    text = sizes[candidates.Sizes(64, 4, 2)]["ptx"]
    assert len(re.findall(r"atom\.global\.gpu\.relaxed\.add\.v4\.f32", text)) == additions
    assert not re.findall(r"atom\.global\.gpu\.relaxed\.add\.f32", text)


def sizes_of(kernel: str, *tables: str, width: int = 64, **given: Any) -> list[tuple[int, ...]]:
    call = meta_call(tables, 33, width=width, **given)
    return [size[:3] for size in candidates.candidates(kernel, call, HOPPER)]


def test_sizes_that_were_measured() -> None:
    assert sizes_of("forward_kernel", "relative_keys") == [(64, 4, 2), (64, 4, 3)]
    assert sizes_of("queries_kernel", "relative_keys") == [(32, 4, 2), (64, 4, 2)]
    assert sizes_of("queries_kernel", *VALUES) == [(32, 4, 2), (64, 4, 1)]
    assert sizes_of("forward_kernel", "relative_keys", width=128) == [(32, 4, 2), (64, 4, 1)]
    assert sizes_of("forward_kernel", "bias") == [(64, 4, 2), (128, 8, 2)]
    assert sizes_of("forward_kernel", "relative_keys", width=24) == [(32, 4, 2)]
    assert sizes_of("queries_kernel", *TABLES) == [(16, 2, 2), (32, 4, 2)], "as elsewhere"
    assert sizes_of("forward_kernel", "bias", dropout_p=0.1, seed=numbers()) == [(32, 4, 2), (64, 4, 2)]


def test_a_bias_beside_wide_rows_takes_the_fixed_order_in_one_size() -> None:
    assert candidates.is_faster_in_order_on_hopper(meta_call(("bias",), 33, width=128))
    for kernel, stages in {"forward_kernel": 2, "queries_kernel": 2, "keys_kernel": 1, "tables_kernel": 2}.items():
        assert sizes_of(kernel, "bias", width=128) == [(64, 4, stages)]


@pytest.mark.parametrize(
    ("tables", "given"),
    [
        (("bias",), {}),
        (("relative_keys",), {"width": 128}),
        (("bias",), {"width": 128, "softcap": 30.0}),
        (("bias",), {"width": 128, "dropout_p": 0.1, "seed": numbers()}),
        (("bias",), {"width": 128, "dtype": F32}),
    ],
)
def test_other_calls_add_across_programs(tables: tuple[str, ...], given: dict[str, Any]) -> None:
    assert not candidates.is_faster_in_order_on_hopper(meta_call(tables, 33, **given))
