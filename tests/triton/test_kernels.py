"""The kernels against the equation in float64, every pair written out, at sizes that cross tiles and fill none.

What lies beyond a tensor's last row and column in memory is NaN: a number read from there would be seen.
"""

from __future__ import annotations

from dataclasses import fields, replace
from typing import Any

import pytest
import torch
from torch import Tensor

from tests.oracle.budget import EPS

pytestmark = pytest.mark.triton
triton = pytest.importorskip("triton")

from relattn.backends.triton.backward import backward  # noqa: E402
from relattn.backends.triton.bands import INTERPRETED  # noqa: E402
from relattn.backends.triton.call import Call, Gradients, Table  # noqa: E402
from relattn.backends.triton.forward import forward  # noqa: E402
from relattn.backends.triton.launch import inputs  # noqa: E402
from tests.triton.kernels import dump_kept  # noqa: E402

TABLES = ("relative_keys", "relative_queries", "relative_values", "bias")
LONGER, WIDER = 40, 3


def random_rows(*shape: int, dtype: torch.dtype) -> Tensor:
    """A tensor inside of a larger one of NaN."""
    around = torch.full((*shape[:-2], shape[-2] + LONGER, shape[-1] + WIDER), torch.nan, dtype=dtype)
    inside = around[..., : shape[-2], : shape[-1]]
    return inside.copy_(torch.randn(shape))


def make_call(
    dtype: torch.dtype = torch.float32, *, batch: int = 1, heads: tuple[int, int] = (2, 1),
    lengths: tuple[int, int] = (21, 37), widths: tuple[int, int, int] = (24, 20, 18), tables: tuple[str, ...] = TABLES,
    rows: int = 9, first: int = -3, zero: bool = False, offset: int = -5, masks: str = "", shared: bool = False,
    **given: Any,
) -> Call:  # fmt: skip
    """Random numbers; every table has another extent, and every other one a head of its own for each query head.

    masks: of k(ey mask), s(egments), p(air mask). shared: the relative query is the query.
    """
    (num_heads, key_heads), (queries, keys), (d, dv, dr) = heads, lengths, widths
    query = random_rows(batch, num_heads, queries, d, dtype=dtype)
    relative = query if shared else random_rows(batch, num_heads, queries, dr, dtype=dtype)
    found = {}
    for n, (name, width) in enumerate(zip(TABLES, (relative.shape[3], d, dv, None), strict=True)):
        shape = (num_heads if n % 2 else 1, rows + n)
        values = torch.randn(shape).to(dtype) if width is None else random_rows(*shape, width, dtype=dtype)
        found[name] = Table(values, first - n, zero) if name in tables else None
    segments = {"query_segments": (batch, queries), "key_segments": (batch, keys)} if "s" in masks else {}
    return Call(
        query, random_rows(batch, key_heads, keys, d, dtype=dtype), random_rows(batch, key_heads, keys, dv, dtype=dtype),
        relative if "relative_keys" in tables else None, **found, offset=offset,
        **{"lowest": None, "highest": None, "scale": 0.3, "dropout_p": 0.0, "seed": None} | given,
        key_mask=torch.rand(batch, keys) < 0.7 if "k" in masks else None,
        pair_mask=torch.rand(1, num_heads, queries, keys) < 0.6 if "p" in masks else None,
        **{name: torch.randint(0, 3, segments[name]) if segments else None for name in ("query_segments", "key_segments")},
    )  # fmt: skip


CALLS: dict[str, dict[str, Any]] = {
    "no table": {"tables": ()},
    "relative keys": {"tables": ("relative_keys",), "batch": 2},
    "relative queries": {"tables": ("relative_queries",), "batch": 2},
    "relative values": {"tables": ("relative_values",), "batch": 2},
    "a bias": {"tables": ("bias",), "batch": 2},
    "clipped": {},
    "zero beyond": {"rows": 20, "first": -11, "zero": True},
    "tables beyond every offset": {"rows": 101, "first": -50},
    "tables left of every offset": {"rows": 4, "first": -100},
    "tables right of every offset": {"rows": 4, "first": 60},
    "one row": {"rows": 1, "first": 0},
    "causal": {"highest": 0},
    "a window": {"lowest": -7, "highest": 3, "offset": 2},
    "rows that see nothing": {"lowest": -3, "highest": -1, "offset": -20},
    "no row sees anything": {"highest": 0, "offset": 500},
    "masks": {"masks": "ksp"},
    "the query itself": {"shared": True, "rows": 20, "first": -11},
    "groups of heads": {"heads": (6, 2), "lengths": (18, 17)},
    "few queries, many keys": {"lengths": (3, 70), "offset": -67, "highest": 0, "lowest": -60},
    "one key": {"lengths": (20, 1)},
    "whole tiles": {"lengths": (32, 16), "offset": -1},
    "narrow": {"widths": (16, 16, 16)},
    "wide": {"widths": (250, 256, 130), "heads": (1, 1), "lengths": (16, 17)},
    "dropout": {"dropout_p": 0.3, "seed": torch.tensor(12345678901)},
}


@pytest.mark.parametrize("name", CALLS)
def test_output_and_every_gradient(name: str, seeded) -> None:
    hold_to_the_equation(make_call(**CALLS[name]))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_half_precision(dtype: torch.dtype, seeded) -> None:
    hold_to_the_equation(make_call(dtype, masks="k", highest=4))


def test_tables_in_float32_beside_half_precision(seeded) -> None:
    call = make_call(torch.bfloat16)
    wide = {name: getattr(call, name)._replace(values=getattr(call, name).values.float()) for name in TABLES}
    hold_to_the_equation(replace(call, **wide))


def test_gradients_are_the_same_bits_on_every_run(seeded) -> None:
    call = make_call(batch=2)
    first, second = (run(call, *cotangents(call)) for _ in range(2))
    assert all(torch.equal(first[name], second[name]) for name in first)


def test_only_wanted_tables_get_a_gradient(seeded) -> None:
    call = make_call(lengths=(5, 6))
    output, lse = forward(call)
    by_output, by_lse = cotangents(call)
    found = backward(call, output, lse, by_output, by_lse, wanted={"query", "bias"})
    every = backward(call, output, lse, by_output, by_lse)
    assert found.bias is not None and every.bias is not None and torch.equal(found.bias, every.bias)
    assert found.relative_keys is None and found.relative_queries is None and found.relative_values is None


def hold_to_the_equation(call: Call) -> None:
    """Output, lse and gradients within rounding of float64's; the gradients' magnitude is that of their own terms."""
    by_output, by_lse = cotangents(call)
    found = run(call, by_output, by_lse)
    truth = equation(call, by_output, by_lse)
    assert found.keys() == truth.keys()
    half = call.query.dtype != torch.float32
    for name, expected in truth.items():
        assert found[name].dtype == (torch.float32 if name == "lse" else table_or_tensor(call, name).dtype), name
        assert torch.equal(found[name].isfinite(), expected.isfinite()), name
        finite = expected.isfinite()
        size = max(float(expected[finite].abs().max(initial=0.0)) if False else largest(expected[finite]), 1.0)
        eps = EPS[str(call.query.dtype).removeprefix("torch.")] * (2.0 if half else 32.0)
        error = largest(found[name].double()[finite] - expected[finite])
        assert error <= eps * size, f"{name}: {error:.2e} of {size:.2e}"
