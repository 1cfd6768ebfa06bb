"""Sums, products, quotients and remainders, each instruction alone, against Python's integers and fractions."""

import math
from collections.abc import Callable
from fractions import Fraction

import numpy as np
import pytest

from ptxemu.fault import Fault
from ptxemu.kinds import INTEGERS, KINDS, WIDENED
from ptxemu.tests.drawn import drawn, flushed, hold_to, prefix, rounded, wrapped
from ptxemu.tests.snippets import PROGRAMS, THREADS, execute

DIVIDED = ("s32", "u32", "s64", "u64")
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


def test_a_quotient_by_an_inverse(rng: np.random.Generator) -> None:
    def divided(a: float, b: float) -> float:
        if math.isfinite(b) and abs(b) > 2.0**126:
            return math.nan if math.isinf(a) else 0.0
        return rounded(float(np.float64(a) / np.float64(b)))

    with np.errstate(all="ignore"):
        hold_to("div.approx.f32", divided, "f32", ("f32", "f32"), rng)


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


def test_halves_of_a_register_wrap_around_alone(rng: np.random.Generator) -> None:
    def added(a: int, b: int) -> int:
        return (a + b) % 2**16 + ((a >> 16) + (b >> 16)) % 2**16 * 2**16

    hold_to("add.s16x2", added, "u32", ("u32", "u32"), rng)


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


@pytest.mark.parametrize(("kind", "wide"), WIDENED.items())
def test_products_in_twice_as_many_bits(kind: str, wide: str, rng: np.random.Generator) -> None:
    hold_to(f"mul.wide.{kind}", lambda a, b: a * b, wide, (kind, kind), rng)
    hold_to(f"mad.wide.{kind}", lambda a, b, c: wrapped(a * b + c, wide), wide, (kind, kind, wide), rng)


def test_the_upper_half_of_a_product(rng: np.random.Generator) -> None:
    hold_to("mul.hi.u32", lambda a, b: a * b // 2**32, "u32", ("u32", "u32"), rng)


@pytest.mark.parametrize("kind", ["s32", "s64"])
def test_the_negative_of_an_integer(kind: str, rng: np.random.Generator) -> None:
    hold_to(f"neg.{kind}", lambda a: wrapped(-a, kind), kind, (kind,), rng)


def quotient(a: int, b: int) -> int:
    """Rounded towards 0."""
    return abs(a) // abs(b) * (1 if (a < 0) == (b < 0) else -1)


def divisors(kind: str, rng: np.random.Generator) -> np.ndarray:
    """Numbers but 0, many of them so small that they go into others more than once, also below 0."""
    small = rng.integers(-100 if kind[0] == "s" else 1, 100, (PROGRAMS, THREADS)).astype(KINDS[kind])
    found = np.where(rng.random(small.shape) < 0.5, drawn(kind, rng), small)
    found[found == 0] = 3
    return found


@pytest.mark.parametrize("kind", DIVIDED)
def test_quotients_are_rounded_towards_0(kind: str, rng: np.random.Generator) -> None:
    """The lowest number over -1 is no number of its kind: it wraps around."""
    divisor = divisors(kind, rng)
    hold_to(f"div.{kind}", lambda a, b: wrapped(quotient(a, b), kind), kind, (kind, kind), rng, at_1=divisor)


@pytest.mark.parametrize("kind", DIVIDED)
def test_remainders_are_what_such_quotients_leave(kind: str, rng: np.random.Generator) -> None:
    divisor = divisors(kind, rng)
    hold_to(f"rem.{kind}", lambda a, b: a - quotient(a, b) * b, kind, (kind, kind), rng, at_1=divisor)


@pytest.mark.parametrize(
    ("a", "b", "quotient", "remainder"),
    [(7, 3, 2, 1), (-7, 3, -2, -1), (7, -3, -2, 1), (-7, -3, 2, -1), (-6, 3, -2, 0), (-(2**31), -1, -(2**31), 0)],
)
def test_signs_of_quotients_and_remainders(a: int, b: int, quotient: int, remainder: int) -> None:
    given = {"%r3": np.int32(a), "%r4": np.int32(b)}
    found = execute("div.s32 %r1, %r3, %r4; rem.s32 %r2, %r3, %r4;", given)
    assert set(found["%r1"].view(np.int32).flat) == {quotient}
    assert set(found["%r2"].view(np.int32).flat) == {remainder}


@pytest.mark.parametrize("name", ["div", "rem"])
@pytest.mark.parametrize("kind", DIVIDED)
def test_a_division_by_0_is_a_fault(kind: str, name: str) -> None:
    register = prefix(kind)
    with pytest.raises(Fault) as fault:
        execute(f"{name}.{kind} {register}1, {register}2, 0;", {f"{register}2": KINDS[kind].type(7)})
    assert str(fault.value) == f"a division by 0: `{name}.{kind} {register}1, {register}2, 0`, in programs 0, 1, 2"


def test_threads_that_take_no_part_may_have_a_divisor_of_0() -> None:
    divisor = np.arange(THREADS, dtype=np.int32) % 4
    registers = {"%r1": np.int32(5), "%r2": np.int32(-8), "%r3": divisor, "%p1": divisor > 0}
    found = execute("@%p1 rem.s32 %r1, %r2, %r3;", registers)["%r1"].view(np.int32)
    assert found.tolist() == [[5, 0, 0, -2] * (THREADS // 4)] * PROGRAMS


TESTED = {
    "add.s16x2",
    *(f"{name}.{kind}" for name in WHOLE for kind in INTEGERS), *REAL, "fma.rn.f32", "fma.rn.ftz.f32",
    *("neg.s32", "neg.s64", "mul.hi.u32", "div.approx.f32"),
    *(f"{name}.{kind}" for name in ("div", "rem") for kind in DIVIDED),
    *(f"{name}.wide.{kind}" for name in ("mul", "mad") for kind in WIDENED),
}  # fmt: skip
