"""From one kind of number to another."""

from __future__ import annotations

import numpy as np

from ptxemu.elementwise import elementwise
from ptxemu.kinds import INTEGERS, KINDS, from_bfloat16, to_bfloat16, to_tf32
from ptxemu.program import Step


def to_float16(values: np.ndarray) -> np.ndarray:
    """The 16 bits of the float16 next to each float32, of two the even one."""
    return values.astype(np.float16).view(np.uint16)


def pair(high: np.ndarray, low: np.ndarray) -> np.ndarray:
    """32 bits of twice 16."""
    return (high.astype(np.uint32) << 16) | low


STEPS: dict[str, Step] = {
    "cvt.f32.bf16": elementwise(from_bfloat16, "f32", "b16"),
    "cvt.f32.f16": elementwise(lambda x: x.astype(np.float32), "f32", "f16"),
    "cvt.rn.bf16.f32": elementwise(to_bfloat16, "b16", "f32"),
    "cvt.rn.f16.f32": elementwise(to_float16, "b16", "f32"),
    "cvt.rn.bf16x2.f32": elementwise(lambda a, b: pair(to_bfloat16(a), to_bfloat16(b)), "b32", "f32", "f32"),
    "cvt.rn.f16x2.f32": elementwise(lambda a, b: pair(to_float16(a), to_float16(b)), "b32", "f32", "f32"),
    "cvt.rna.tf32.f32": elementwise(to_tf32, "b32", "f32"),
    "cvt.rn.f32.s32": elementwise(lambda x: x.astype(np.float32), "f32", "s32"),
}
STEPS |= {
    f"cvt.{to}.{of}": elementwise(lambda x, dtype=KINDS[to]: x.astype(dtype), to, of)
    for to in INTEGERS
    for of in INTEGERS
    if to != of
}
