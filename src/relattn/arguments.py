"""Checks of plain values, and their wording: the argument, what came, what is expected."""

from __future__ import annotations

import math
from collections.abc import Iterable


def check_size(name: str, value: object, least: int = 1) -> None:
    """`value` is an int of at least `least`; ValueError otherwise."""
    if isinstance(value, bool) or not isinstance(value, int) or value < least:
        raise ValueError(f"{name}: got {value!r}; expected an int of at least {least}")


def check_flag(name: str, value: object) -> None:
    """`value` is True or False; TypeError otherwise."""
    if not isinstance(value, bool):
        raise TypeError(f"{name}: got {value!r}; expected True or False")


def check_choice(name: str, value: object, choices: Iterable[str]) -> None:
    """`value` is one of the names in `choices`; ValueError otherwise."""
    if not isinstance(value, str) or value not in choices:
        raise ValueError(f"{name}: got {value!r}; expected one of {', '.join(map(repr, choices))}")


def check_probability(name: str, value: object) -> None:
    """0 <= value <= 1; ValueError otherwise."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0.0 <= value <= 1.0:
        raise ValueError(f"{name}: got {value!r}; expected a probability between 0 and 1")


def check_scale(scale: object) -> None:
    """A finite number, or None; ValueError otherwise."""
    if scale is None:
        return
    if isinstance(scale, bool) or not isinstance(scale, int | float) or not math.isfinite(scale):
        raise ValueError(f"scale: got {scale!r}; expected a finite number, or None for 1/sqrt(width)")


def check_base(base: object) -> None:
    """A finite number above 1, from which frequencies descend; ValueError otherwise."""
    if isinstance(base, bool) or not isinstance(base, int | float) or not 1.0 < base < math.inf:
        raise ValueError(f"base: got {base!r}; expected a finite number above 1")


def check_buckets(num_buckets: object, max_distance: object, bidirectional: object) -> None:
    """T5's buckets split evenly, between the directions and between exact and logarithmic; ValueError otherwise."""
    check_flag("bidirectional", bidirectional)
    parts, words = (4, "four") if bidirectional else (2, "two")
    check_size("num_buckets", num_buckets, least=parts)
    assert isinstance(num_buckets, int)
    if num_buckets % parts:
        raise ValueError(f"num_buckets: got {num_buckets}; expected a multiple of {words}, to be split evenly")
    exact = num_buckets // parts
    if isinstance(max_distance, bool) or not isinstance(max_distance, int) or max_distance <= exact:
        raise ValueError(
            f"max_distance: got {max_distance!r}; expected an int above {exact}, the distances that have a bucket of "
            "their own"
        )
