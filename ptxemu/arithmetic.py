"""Sums, products, quotients, remainders, smallest and largest; integers wrap around, float32 is rounded once."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from ptxemu.elementwise import elementwise
from ptxemu.fault import Fault
from ptxemu.kinds import INTEGERS, WIDENED, flushed
from ptxemu.operands import Operand
from ptxemu.program import Step
from ptxemu.threads import Threads


def multiply_add(a: np.ndarray, b: np.ndarray, c: np.ndarray) -> np.ndarray:
    """a * b + c of float32, rounded once.

    In float64 the product is exact. Where the sum is not, it is made odd in its last digit, so that the second rounding
    sees that there was more (Boldo, Melquiond 2008, "Emulation of a FMA and correctly rounded sums").
    """
    product = a.astype(np.float64) * b
    total = np.asarray(product + c)
    of_c = total - product
    lost = (product - (total - of_c)) + (c - of_c)
    bits = total.view(np.int64)
    odd = bits + np.where((lost > 0) == (total > 0), 1, -1)
    inexact = np.isfinite(total) & (lost != 0) & (bits % 2 == 0)
    return np.where(inexact, odd, bits).view(np.float64).astype(np.float32)


def quotient(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """Of integers, rounded towards 0."""
    return (a - np.fmod(a, b)) // b


def dividing(function: Callable[[np.ndarray, np.ndarray], np.ndarray], kind: str) -> Step:
    """The first operand becomes the function of the others, integers; a divisor of 0 gives no number that PTX says."""

    def step(threads: Threads, operands: tuple[Operand, ...]) -> None:
        target, dividend, divisor = operands
        a, b = (threads.everywhere(threads.read(operand, kind)) for operand in (dividend, divisor))
        if (b[threads.lanes()] == 0).any():
            raise Fault("a division by 0")
        threads.write(target, function(a, np.where(b == 0, b.dtype.type(1), b)), kind)

    return step


def approximate_quotient(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """a * (1 / b) of float32. Beyond 2^126 the inverse is 0: so is the quotient, and that of an infinity is NaN."""
    flushed_to_0 = (np.abs(b) > 2.0**126) & np.isfinite(b)
    return np.where(flushed_to_0, np.where(np.isinf(a), np.float32(np.nan), np.float32(0.0)), a / b)


def power_of_two(x: np.ndarray) -> np.ndarray:
    """2^x of float32, which a GPU approximates."""
    return np.exp2(x.astype(np.float64)).astype(np.float32)


def high_bits(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """The upper half of a product of 32 bits times 32."""
    return (a.astype(np.uint64) * b.astype(np.uint64)) >> np.uint64(32)


def sums_of_halves(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """Of the lower 16 bits, and of the upper ones."""
    return ((a + b) & np.uint32(0xFFFF)) | ((a >> np.uint32(16)) + (b >> np.uint32(16)) << np.uint32(16))


def wide_product(a: np.ndarray, b: np.ndarray, c: np.ndarray | int = 0) -> np.ndarray:
    """a * b + c in twice as many bits as a factor has."""
    wide = np.dtype(f"{a.dtype.kind}{2 * a.dtype.itemsize}")
    return a.astype(wide) * b.astype(wide) + np.asarray(c).astype(wide)


STEPS: dict[str, Step] = {
    "add.s16x2": elementwise(sums_of_halves, "u32", "u32", "u32"),
    "mul.hi.u32": elementwise(high_bits, "u32", "u32", "u32"),
    "neg.s32": elementwise(np.negative, "s32", "s32"),
    "neg.s64": elementwise(np.negative, "s64", "s64"),
    "neg.f32": elementwise(np.negative, "f32", "f32"),
    "abs.f32": elementwise(np.abs, "f32", "f32"),
    "div.full.f32": elementwise(np.divide, "f32", "f32", "f32"),
    "div.approx.f32": elementwise(approximate_quotient, "f32", "f32", "f32"),
    "fma.rn.f32": elementwise(multiply_add, "f32", "f32", "f32", "f32"),
    "fma.rn.ftz.f32": elementwise(
        lambda a, b, c: flushed(multiply_add(flushed(a), flushed(b), flushed(c))), "f32", "f32", "f32", "f32"
    ),
    "ex2.approx.ftz.f32": elementwise(lambda x: flushed(power_of_two(flushed(x))), "f32", "f32"),
}
STEPS |= {f"{name}.f32": elementwise(function, "f32", "f32", "f32")
          for name, function in {"add": np.add, "sub": np.subtract, "mul": np.multiply, "min": np.fmin,
                                 "max": np.fmax}.items()}  # fmt: skip
STEPS |= {f"{name}.{kind}": elementwise(function, kind, kind, kind) for kind in INTEGERS
          for name, function in {"add": np.add, "sub": np.subtract, "mul.lo": np.multiply, "min": np.minimum,
                                 "max": np.maximum}.items()}  # fmt: skip
STEPS |= {f"{name}.{kind}": dividing(function, kind) for kind in ("s32", "u32", "s64", "u64")
          for name, function in {"div": quotient, "rem": np.fmod}.items()}  # fmt: skip
STEPS |= {f"mad.lo.{kind}": elementwise(lambda a, b, c: a * b + c, kind, kind, kind, kind) for kind in INTEGERS}
for kind, wide in WIDENED.items():
    STEPS[f"mul.wide.{kind}"] = elementwise(wide_product, wide, kind, kind)
    STEPS[f"mad.wide.{kind}"] = elementwise(wide_product, wide, kind, kind, wide)
