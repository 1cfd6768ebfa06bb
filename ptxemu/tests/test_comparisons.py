"""Comparisons and choices, each instruction alone, against Python's own."""

import math
import operator
from collections.abc import Callable

import numpy as np
import pytest

from ptxemu.kinds import INTEGERS
from ptxemu.tests.drawn import drawn, hold_to

COMPARED: dict[str, Callable[..., bool]] = {
    name: getattr(operator, name) for name in ("eq", "ne", "lt", "le", "gt", "ge")
}
WHOLE = [f"{name}.{kind}" for name in COMPARED for kind in INTEGERS]
WHOLE += [f"{name}.{kind}" for name in ("eq", "ne") for kind in ("b16", "b32", "b64")]
REAL = ("f32", "f16")
CHOSEN = ("b16", "b32", "b64", "f32")


@pytest.mark.parametrize("name", WHOLE)
def test_integers(name: str, rng: np.random.Generator) -> None:
    compare, kind = name.split(".")
    first = drawn(kind, rng)
    second = np.where(rng.random(first.shape) < 0.3, first, drawn(kind, rng))
    hold_to(f"setp.{name}", COMPARED[compare], "pred", (kind, kind), rng, at_0=first, at_1=second)


@pytest.mark.parametrize("kind", REAL)
@pytest.mark.parametrize("name", COMPARED)
def test_real_numbers(name: str, kind: str, rng: np.random.Generator) -> None:
    """NaN compares to nothing, and with a u at the end to everything."""
    compare, first = COMPARED[name], drawn(kind, rng)
    second = np.where(rng.random(first.shape) < 0.3, first, drawn(kind, rng))
    given = {"at_0": first, "at_1": second}

    def ordered(a: float, b: float) -> bool:
        return not math.isnan(a) and not math.isnan(b) and compare(a, b)

    def unordered(a: float, b: float) -> bool:
        return math.isnan(a) or math.isnan(b) or compare(a, b)

    hold_to(f"setp.{name}.{kind}", ordered, "pred", (kind, kind), rng, **given)
    hold_to(f"setp.{name}u.{kind}", unordered, "pred", (kind, kind), rng, **given)


@pytest.mark.parametrize("kind", REAL)
def test_whether_there_is_a_nan(kind: str, rng: np.random.Generator) -> None:
    hold_to(f"setp.nan.{kind}", lambda a, b: a != a or b != b, "pred", (kind, kind), rng)
    hold_to(f"setp.num.{kind}", lambda a, b: a == a and b == b, "pred", (kind, kind), rng)


@pytest.mark.parametrize("kind", CHOSEN)
def test_choices(kind: str, rng: np.random.Generator) -> None:
    hold_to(f"selp.{kind}", lambda a, b, chosen: a if chosen else b, kind, (kind, kind, "pred"), rng)


TESTED = {
    *(f"setp.{name}" for name in WHOLE), *(f"selp.{kind}" for kind in CHOSEN),
    *(f"setp.{name}{u}.{kind}" for name in COMPARED for u in ("", "u") for kind in REAL),
    *(f"setp.{name}.{kind}" for name in ("nan", "num") for kind in REAL),
}  # fmt: skip
