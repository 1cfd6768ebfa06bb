"""Comparisons, and the choice between two numbers."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from ptxemu.elementwise import elementwise
from ptxemu.kinds import INTEGERS
from ptxemu.program import Step

ORDERED = {
    "eq": np.equal, "lt": np.less, "le": np.less_equal, "gt": np.greater, "ge": np.greater_equal,
}  # fmt: skip


def either_is_nan(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    return np.isnan(a) | np.isnan(b)


def or_nan(compare: Callable[..., np.ndarray]) -> Callable[..., np.ndarray]:
    """The comparison, which also holds where a number is NaN."""
    return lambda a, b: compare(a, b) | either_is_nan(a, b)


FLOATS = {
    **ORDERED,
    "ne": lambda a, b: (a != b) & ~either_is_nan(a, b),
    "neu": np.not_equal,
    **{f"{name}u": or_nan(compare) for name, compare in ORDERED.items()},
    "nan": either_is_nan,
    "num": lambda a, b: ~either_is_nan(a, b),
}
STEPS: dict[str, Step] = {
    f"setp.{name}.{kind}": elementwise(compare, "pred", kind, kind)
    for kind in (*INTEGERS, "b16", "b32", "b64")
    for name, compare in {**ORDERED, "ne": np.not_equal}.items()
    if kind[0] != "b" or name in ("eq", "ne")
}
STEPS |= {
    f"setp.{name}.{kind}": elementwise(compare, "pred", kind, kind)
    for kind in ("f32", "f16")
    for name, compare in FLOATS.items()
}
STEPS |= {
    f"selp.{kind}": elementwise(lambda a, b, chosen: np.where(chosen, a, b), kind, kind, kind, "pred")
    for kind in ("b16", "b32", "b64", "f32")
}
