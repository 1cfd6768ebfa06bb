"""Sums, products and quotients, each instruction alone, against Python's integers and fractions."""

import math
from collections.abc import Callable
from fractions import Fraction

import numpy as np
import pytest

from tests.triton.ptx.drawn import drawn, flushed, hold_to, rounded, wrapped
from tests.triton.ptx.fault import Fault
from tests.triton.ptx.kinds import INTEGERS
from tests.triton.ptx.snippets import execute

WHOLE: dict[str, Callable[..., int]] = {
    "add": lambda a, b: a + b,
    "sub": lambda a, b: a - b,
    "mul.lo": lambda a, b: a * b,
    "mad.lo": lambda a, b, c: a * b + c,
    "min": min,
    "max": max,
}
REAL: dict[str, Callable[..., float]] = {
    "add.f32": lambda a, b: a + b,
    "sub.f32": lambda a, b: a - b,
    "mul.f32": lambda a, b: a * b,
    "min.f32": lambda a, b: b if math.isnan(a) else a if math.isnan(b) else min(a, b),
    "max.f32": lambda a, b: b if math.isnan(a) else a if math.isnan(b) else max(a, b),
    "neg.f32": lambda a: -a,
    "abs.f32": abs,
    "div.full.f32": lambda a, b: float(np.float64(a) / np.float64(b)),
    "ex2.approx.ftz.f32": lambda a: flushed(rounded(float(np.exp2(flushed(a))))),
}


def multiplied_and_added(a: float, b: float, c: float) -> float:
    """a * b + c, rounded once."""
    if not all(map(math.isfinite, (a, b, c))):
        return float(np.float64(a) * np.float64(b) + np.float64(c))
    exact = Fraction(a) * Fraction(b) + Fraction(c)
    return rounded(exact) if exact else a * b + c


@pytest.mark.parametrize("kind", INTEGERS)
@pytest.mark.parametrize("name", WHOLE)
def test_integers_wrap_around(name: str, kind: str, rng: np.random.Generator) -> None:
    count = 3 if name == "mad.lo" else 2
    hold_to(f"{name}.{kind}", lambda *numbers: wrapped(WHOLE[name](*numbers), kind), kind, (kind,) * count, rng)


@pytest.mark.parametrize("name", REAL)
def test_real_numbers_are_rounded_once(name: str, rng: np.random.Generator) -> None:
    count = 1 if name[:3] in ("neg", "abs", "ex2") else 2
    with np.errstate(all="ignore"):
        hold_to(name, lambda *numbers: rounded(REAL[name](*numbers)), "f32", ("f32",) * count, rng)


def test_a_product_and_a_sum_are_rounded_once(rng: np.random.Generator) -> None:
    with np.errstate(all="ignore"):
        hold_to("fma.rn.f32", multiplied_and_added, "f32", ("f32",) * 3, rng)
        hold_to(
            "fma.rn.ftz.f32",
            lambda *numbers: flushed(multiplied_and_added(*map(flushed, numbers))),
            "f32",
            ("f32",) * 3,
            rng,
        )


@pytest.mark.parametrize("kind", ["u16", "s16"])
def test_products_in_32_bits(kind: str, rng: np.random.Generator) -> None:
    hold_to(f"mul.wide.{kind}", lambda a, b: a * b, kind.replace("16", "32"), (kind, kind), rng)


@pytest.mark.parametrize("kind", ["u32", "s32"])
def test_products_in_64_bits(kind: str, rng: np.random.Generator) -> None:
    wide = kind.replace("32", "64")
    hold_to(f"mul.wide.{kind}", lambda a, b: a * b, wide, (kind, kind), rng)
    hold_to(f"mad.wide.{kind}", lambda a, b, c: wrapped(a * b + c, wide), wide, (kind, kind, wide), rng)


def test_the_upper_half_of_a_product(rng: np.random.Generator) -> None:
    hold_to("mul.hi.u32", lambda a, b: a * b // 2**32, "u32", ("u32", "u32"), rng)


@pytest.mark.parametrize("kind", ["s32", "s64"])
def test_the_negative_of_an_integer(kind: str, rng: np.random.Generator) -> None:
    hold_to(f"neg.{kind}", lambda a: wrapped(-a, kind), kind, (kind,), rng)


@pytest.mark.parametrize("kind", ["s32", "u32"])
def test_quotients_are_rounded_towards_0(kind: str, rng: np.random.Generator) -> None:
    divisor = drawn(kind, rng)
    divisor[divisor == 0] = 3

    def quotient(a: int, b: int) -> int:
        return wrapped(abs(a) // abs(b) * (1 if (a < 0) == (b < 0) else -1), kind)

    hold_to(f"div.{kind}", quotient, kind, (kind, kind), rng, at_1=divisor)


def test_a_division_by_0_is_a_fault() -> None:
    with pytest.raises(Fault) as fault:
        execute("div.s32 %r1, %r2, 0;", {"%r2": np.int32(7)})
    assert str(fault.value) == "a division by 0: `div.s32 %r1, %r2, 0`, in programs 0, 1, 2"


TESTED = {
    *(f"{name}.{kind}" for name in WHOLE for kind in INTEGERS), *REAL, "fma.rn.f32", "fma.rn.ftz.f32",
    *("neg.s32", "neg.s64", "mul.hi.u32", "div.s32", "div.u32"),
    *(f"{name}.wide.{kind}32" for name in ("mul", "mad") for kind in "us"), "mul.wide.u16", "mul.wide.s16",
}  # fmt: skip
