"""Numbers for instructions to meet: random bits, and those at which things go wrong."""

from __future__ import annotations

import math
from collections.abc import Callable
from fractions import Fraction
from typing import Any

import numpy as np

from ptxemu.kinds import KINDS
from ptxemu.tests.snippets import PROGRAMS, THREADS, execute

REGISTERS = {1: "%p", 2: "%rs", 4: "%r", 8: "%rd"}
FLOATS = [0.0, -0.0, 1.0, -1.5, 3.0, 1e-40, -1e-40, 1e38, -3e38, math.inf, -math.inf, math.nan]


def prefix(kind: str) -> str:
    """Of the registers that hold such numbers."""
    return REGISTERS[1 if kind == "pred" else KINDS[kind].itemsize]


def drawn(kind: str, rng: np.random.Generator) -> np.ndarray:
    """[PROGRAMS, THREADS]."""
    shape, dtype = (PROGRAMS, THREADS), KINDS[kind]
    if dtype.kind == "b":
        return rng.random(shape) < 0.5
    if dtype.kind == "f":
        numbers = np.float64(rng.standard_normal(shape)) * 2.0 ** rng.integers(-12, 12, shape)
        with np.errstate(over="ignore"):  # 1e38 is infinite in float16
            return np.where(rng.random(shape) < 0.3, rng.choice(FLOATS, shape), numbers).astype(dtype)
    bits = rng.integers(0, 2 ** (8 * dtype.itemsize), shape, dtype=np.uint64).astype(f"u{dtype.itemsize}").view(dtype)
    limits = np.iinfo(dtype)
    edges = rng.choice(np.array([0, 1, limits.min, limits.max, 7], dtype), shape)
    return np.where(rng.random(shape) < 0.3, edges, bits)


def wrapped(number: int, kind: str) -> int:
    """The integer of this kind that has the same low bits."""
    bits = int(kind[1:])
    low = number % 2**bits
    return low - 2**bits if kind[0] == "s" and low >= 2 ** (bits - 1) else low


def rounded(number: Fraction | float) -> float:
    """The float32 next to a number, of two the even one."""
    if not isinstance(number, Fraction):
        return float(np.float32(number))
    near = np.float32(float(number))
    around = [near, np.nextafter(near, np.float32(-np.inf)), np.nextafter(near, np.float32(np.inf))]
    finite = [one for one in around if np.isfinite(one)]
    if abs(number) >= Fraction(2) ** 128 - Fraction(2) ** 103:
        return math.copysign(math.inf, number)
    return float(min(finite, key=lambda one: (abs(Fraction(float(one)) - number), int(one.view(np.uint32)) % 2)))


def flushed(number: float) -> float:
    """0 of its sign in place of a number below the smallest normal float32."""
    return math.copysign(0.0, number) if abs(number) < 2.0**-126 else number


def hold_to(
    name: str,
    function: Callable[..., Any],
    result: str,
    sources: tuple[str, ...],
    rng: np.random.Generator,
    **given: np.ndarray,
) -> None:
    """`name` gives each thread what the function makes of its numbers, as numbers of Python; given: by their place."""
    numbers = [given.get(f"at_{n}", drawn(kind, rng)) for n, kind in enumerate(sources)]
    registers = {
        f"{prefix(kind)}{n + 1}": values for n, (kind, values) in enumerate(zip(sources, numbers, strict=True))
    }
    target = f"{prefix(result)}8"
    found = execute(f"{name} {', '.join([target, *registers])};", registers)[target]
    expected = [function(*(values.flat[n].item() for values in numbers)) for n in range(PROGRAMS * THREADS)]
    dtype = KINDS[result]
    np.testing.assert_array_equal(found.view(dtype).ravel(), np.array(expected, dtype), name)
