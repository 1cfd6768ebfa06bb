"""Bits and their places: and, or, exclusive or, not, shifts, fields, bytes; each alone, against Python's integers."""

from collections.abc import Callable

import numpy as np
import pytest

from ptxemu.tests.drawn import drawn, hold_to, wrapped

KINDS = ("b16", "b32", "b64")
BETWEEN: dict[str, Callable[[int, int], int]] = {
    "and": lambda a, b: a & b,
    "or": lambda a, b: a | b,
    "xor": lambda a, b: a ^ b,
}


@pytest.mark.parametrize("kind", [*KINDS, "pred"])
@pytest.mark.parametrize("name", BETWEEN)
def test_between_bits(name: str, kind: str, rng: np.random.Generator) -> None:
    hold_to(f"{name}.{kind}", BETWEEN[name], kind, (kind, kind), rng)


@pytest.mark.parametrize("kind", [*KINDS, "pred"])
def test_the_opposite(kind: str, rng: np.random.Generator) -> None:
    hold_to(f"not.{kind}", (lambda a: not a) if kind == "pred" else (lambda a: wrapped(~a, kind)), kind, (kind,), rng)


@pytest.mark.parametrize("kind", KINDS)
def test_shifts(kind: str, rng: np.random.Generator) -> None:
    """By up to twice the width: nothing is left, but for the sign."""
    bits = int(kind[1:])
    by = rng.integers(0, 2 * bits, drawn("u32", rng).shape, dtype=np.uint32)
    hold_to(f"shl.{kind}", lambda a, n: wrapped(a << n, kind), kind, (kind, "u32"), rng, at_1=by)
    for other in (f"u{bits}", f"s{bits}"):
        hold_to(f"shr.{other}", lambda a, n: a >> n, other, (other, "u32"), rng, at_1=by)


@pytest.mark.parametrize("kind", ["u32", "s32"])
def test_fields(kind: str, rng: np.random.Generator) -> None:
    """Bits first .. first + count - 1; beyond bit 31 a signed number goes on with its sign, another with zeros."""
    shape = drawn("u32", rng).shape
    first, count = (rng.choice([*range(33), 40, 64, 255], shape).astype(np.uint32) for _ in range(2))

    def field(a: int, first: int, count: int) -> int:
        low = (a >> first) % 2**count
        negative = kind == "s32" and count and (a >> min(first + count - 1, 31)) % 2
        return low - 2**count if negative else low

    hold_to(f"bfe.{kind}", field, kind, (kind, "u32", "u32"), rng, at_1=first, at_2=count)


def test_bytes_in_another_order(rng: np.random.Generator) -> None:
    """Of eight; what lies above the four names is nobody's."""

    def chosen(low: int, high: int, choice: int) -> int:
        eight = low.to_bytes(4, "little") + high.to_bytes(4, "little")
        names = [choice >> 4 * n & 15 for n in range(4)]
        found = [eight[name % 8] if name < 8 else (255 if eight[name % 8] >= 128 else 0) for name in names]
        return int.from_bytes(bytes(found), "little")

    hold_to("prmt.b32", chosen, "b32", ("b32", "b32", "b32"), rng)


TESTED = {
    *(f"{name}.{kind}" for name in (*BETWEEN, "not") for kind in (*KINDS, "pred")),
    *(f"shl.{kind}" for kind in KINDS),
    *(f"shr.{sign}{kind[1:]}" for kind in KINDS for sign in "us"),
    *("bfe.u32", "bfe.s32", "prmt.b32"),
}
