"""What the bits of a register mean: kinds of numbers, as PTX names them, and bfloat16 and tf32, which NumPy has not."""

from __future__ import annotations

import numpy as np

INTEGERS = ("u16", "s16", "u32", "s32", "u64", "s64")
WIDENED = {"u16": "u32", "s16": "s32", "u32": "u64", "s32": "s64"}
"""The kind of the products of each, where none wraps around."""
KINDS: dict[str, np.dtype] = {
    "pred": np.dtype(bool),
    "f16": np.dtype(np.float16), "f32": np.dtype(np.float32), "f64": np.dtype(np.float64),
    **{f"{letter}{bits}": np.dtype(f"{'i' if letter == 's' else 'u'}{bits // 8}")
       for letter in "bus" for bits in (8, 16, 32, 64)},
}  # fmt: skip


def unsigned(size: int) -> np.dtype:
    """The bits of a number of so many bytes."""
    return np.dtype(f"u{size}")


def from_bfloat16(bits: np.ndarray) -> np.ndarray:
    """In float32, of 16 bits each."""
    return (bits.astype(np.uint32) << 16).view(np.float32)


def to_bfloat16(values: np.ndarray) -> np.ndarray:
    """The 16 bits of the bfloat16 next to each float32, of two the even one; NaN stays NaN."""
    bits = values.view(np.uint32).astype(np.uint64)
    rounded = (bits + 0x7FFF + ((bits >> 16) & 1)) >> 16
    return np.where(np.isnan(values), 0x7FFF, rounded).astype(np.uint16)


def to_tf32(values: np.ndarray) -> np.ndarray:
    """The bits of the float32 of 10 binary places next to each, of two the one further from 0; NaN stays NaN."""
    bits = values.view(np.uint32)
    return np.where(np.isnan(values), 0x7FFFFFFF, (bits + 0x1000) & ~np.uint32(0x1FFF)).astype(np.uint32)


def truncated_to_tf32(bits: np.ndarray) -> np.ndarray:
    """The float32 of which a tensor core sees 10 binary places."""
    return (bits & ~np.uint32(0x1FFF)).view(np.float32)


def flushed(values: np.ndarray) -> np.ndarray:
    """float32 with zeros of their sign in place of subnormal numbers: what .ftz says."""
    return np.where(np.abs(values) < np.finfo(np.float32).tiny, np.copysign(np.float32(0), values), values)
