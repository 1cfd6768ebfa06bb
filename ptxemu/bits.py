"""Bits: and, or, exclusive or, not, shifts, fields of some bits, and bytes in another order."""

from __future__ import annotations

import numpy as np

from ptxemu.elementwise import elementwise
from ptxemu.kinds import KINDS
from ptxemu.program import Step

BITS = ("b16", "b32", "b64")


def left(x: np.ndarray, by: np.ndarray) -> np.ndarray:
    """Zeros come in; from as many places on as there are bits, nothing else is left."""
    return x << np.minimum(by, 8 * x.itemsize).astype(x.dtype)


def right(x: np.ndarray, by: np.ndarray) -> np.ndarray:
    """Zeros come in, or copies of a signed number's sign."""
    return x >> np.minimum(by, 8 * x.itemsize).astype(x.dtype)


def field(x: np.ndarray, first: np.ndarray, count: np.ndarray) -> np.ndarray:
    """`count` bits from bit `first` on, as a number of the kind of x; above bit 31 x goes on with zeros or its sign."""
    wide = x.astype(np.int64)
    first, count = ((number & 0xFF).astype(np.int64) for number in (first, count))
    above = np.int64(-1) << np.minimum(count, 33)
    found = (wide >> first) & ~above
    if x.dtype.kind != "i":
        return found
    negative = (count > 0) & ((wide >> (first + count - 1)) & 1 == 1)
    return np.where(negative, found | above, found)


def chosen_bytes(low: np.ndarray, high: np.ndarray, choice: np.ndarray) -> np.ndarray:
    """Four of eight bytes: four bits name each, the uppermost of which asks for copies of the byte's sign instead."""
    eight = low.astype(np.uint64) | high.astype(np.uint64) << np.uint64(32)
    found = np.zeros(np.broadcast(low, high, choice).shape, np.uint64)
    for n in range(4):
        name = (choice >> np.uint32(4 * n)).astype(np.uint64)
        byte = eight >> (name % 8 * 8) & 0xFF
        byte = np.where(name & 8 != 0, (byte >> np.uint64(7)) * 0xFF, byte)
        found |= byte << np.uint64(8 * n)
    return found


STEPS: dict[str, Step] = {
    "prmt.b32": elementwise(chosen_bytes, "b32", "b32", "b32", "b32"),
    "bfe.u32": elementwise(field, "u32", "u32", "u32", "u32"),
    "bfe.s32": elementwise(field, "s32", "s32", "u32", "u32"),
}
STEPS |= {
    f"{name}.{kind}": elementwise(function, kind, kind, kind)
    for kind in (*BITS, "pred")
    for name, function in {"and": np.bitwise_and, "or": np.bitwise_or, "xor": np.bitwise_xor}.items()
}
STEPS |= {f"not.{kind}": elementwise(np.invert, kind, kind) for kind in (*BITS, "pred")}
STEPS |= {f"shl.{kind}": elementwise(left, kind, kind, "u32") for kind in BITS}
STEPS |= {f"shr.{kind}": elementwise(right, kind, kind, "u32") for kind in KINDS if kind[0] in "us" and kind[1:] != "8"}
