"""From one kind of number to another, each instruction alone, against torch and Python's integers."""

import numpy as np
import pytest
import torch

from ptxemu.kinds import INTEGERS, unsigned
from ptxemu.tests.drawn import drawn, hold_to, rounded, wrapped
from ptxemu.tests.snippets import execute

HALVES = {"bf16": torch.bfloat16, "f16": torch.float16}
BETWEEN = [(to, of) for to in INTEGERS for of in INTEGERS if to != of]


@pytest.mark.parametrize(("to", "of"), BETWEEN)
def test_between_integers(to: str, of: str, rng: np.random.Generator) -> None:
    hold_to(f"cvt.{to}.{of}", lambda a: wrapped(a, to), to, (of,), rng)


def test_from_an_integer_to_float32(rng: np.random.Generator) -> None:
    hold_to("cvt.rn.f32.s32", lambda a: rounded(float(a)), "f32", ("s32",), rng)


def bits_of(values: np.ndarray, kind: str) -> np.ndarray:
    return torch.from_numpy(values).to(HALVES[kind]).view(torch.int16).numpy().view(np.uint16)


def same(found: np.ndarray, expected: np.ndarray, kind: str) -> None:
    """Bit for bit; of NaN there are several."""
    numbers = [torch.from_numpy(bits.view(np.int16)).view(HALVES[kind]).float() for bits in (found, expected)]
    torch.testing.assert_close(*numbers, rtol=0, atol=0, equal_nan=True)


@pytest.mark.parametrize("kind", HALVES)
def test_to_half_precision(kind: str, rng: np.random.Generator) -> None:
    values, others = drawn("f32", rng), drawn("f32", rng)
    values[0, :4] = [1.00390625, 1.01171875, 1.00048828125, 65519.0]  # halfway between two numbers of one of both
    found = execute(f"cvt.rn.{kind}.f32 %rs1, %r1;", {"%r1": values})["%rs1"]
    same(found, bits_of(values, kind), kind)
    found = execute(f"cvt.rn.{kind}x2.f32 %r3, %r1, %r2;", {"%r1": values, "%r2": others})["%r3"]
    same((found >> 16).astype(np.uint16), bits_of(values, kind), kind)
    same(found.astype(np.uint16), bits_of(others, kind), kind)


@pytest.mark.parametrize("kind", HALVES)
def test_from_half_precision(kind: str, rng: np.random.Generator) -> None:
    bits = drawn("u16", rng)
    found = execute(f"cvt.f32.{kind} %r1, %rs1;", {"%rs1": bits})["%r1"]
    expected = torch.from_numpy(bits.view(np.int16)).view(HALVES[kind]).float().numpy()
    np.testing.assert_array_equal(found.view(np.float32), expected)


def test_to_ten_binary_places(rng: np.random.Generator) -> None:
    """Halfway between two, away from 0."""
    values = drawn("f32", rng)
    values[0, :3] = [1 + 2.0**-11, -1 - 3 * 2.0**-11, 1 + 2.0**-11 - 2.0**-20]
    found = execute("cvt.rna.tf32.f32 %r2, %r1;", {"%r1": values})["%r2"].view(np.float32)
    assert (found.view(np.uint32)[~np.isnan(found)] % 2**13 == 0).all()
    np.testing.assert_array_equal(found[0, :3], np.array([1 + 2.0**-10, -1 - 2 * 2.0**-10, 1.0], np.float32))
    np.testing.assert_array_equal(np.isnan(found), np.isnan(values))
    usual = np.isfinite(values) & (np.abs(values) > 1e-30) & (np.abs(values) < 1e38)
    assert (np.abs(found[usual] / values[usual] - 1.0) <= 2.0**-11).all()
    np.testing.assert_array_equal(found[np.isinf(values)], values[np.isinf(values)])


def test_what_a_wider_register_gets(rng: np.random.Generator) -> None:
    """Signed numbers keep their sign, others get zeros before them."""
    given = {"%r1": drawn("s32", rng)}
    found = execute("cvt.s16.s32 %r2, %r1; cvt.u16.u32 %r3, %r1;", given)
    low = given["%r1"].astype(unsigned(2))
    np.testing.assert_array_equal(found["%r2"].view(np.int32), low.view(np.int16))
    np.testing.assert_array_equal(found["%r3"], low)


TESTED = {
    *(f"cvt.{to}.{of}" for to, of in BETWEEN),
    *(f"cvt.f32.{kind}" for kind in HALVES),
    *(f"cvt.rn.{kind}{x2}.f32" for kind in HALVES for x2 in ("", "x2")),
    *("cvt.rn.f32.s32", "cvt.rna.tf32.f32"),
}
