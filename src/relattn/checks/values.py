"""Checks of plain values, and their wording: the argument, what came, what is expected.

NumPy integers count as integers. A check returns the plain Python number.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable
from numbers import Integral, Real

FAR = 2**60
"""Starts, window limits and distances of buckets lie below it, so that no sum of a few overflows int64. Positions in a
list are not checked.
"""
_LONGEST_SHOWN = 2**64
"""Python refuses to print ints of more than 4300 digits, and more than 20 digits do not help in a message."""


def came(value: object) -> str:
    """How a message shows what came: its repr; for an int beyond 64 bits its length."""
    if isinstance(value, int) and abs(value) >= _LONGEST_SHOWN:
        return f"an int of {value.bit_length()} bits"
    return repr(value)


def kind_of(value: object) -> str:
    """How a message shows what kind of thing came: its type; a class in place of an instance by its name."""
    if isinstance(value, type):
        return f"the class {value.__name__} and no instance, {value.__name__}(...)"
    return type(value).__name__


def as_int(value: object) -> int | None:
    """An int, or a NumPy integer as an int; None for anything else, also for bools, floats and tensors."""
    if isinstance(value, int):
        return None if isinstance(value, bool) else value
    return int(value) if isinstance(value, Integral) else None


def as_finite(value: object) -> int | float | None:
    """A finite number, also one of NumPy's, as an int or a float; None for anything else.

    It uses only comparisons, because a compiled graph can trace these.
    """
    if isinstance(value, float):
        number = value
    elif isinstance(value, Real) and not isinstance(value, Integral):
        number = float(value)
    else:
        number = as_int(value)
    if number is None or not -sys.float_info.max <= number <= sys.float_info.max:
        return None
    return number if type(number) in (int, float) else float(number)


def check_size(name: str, value: object, least: int = 1) -> int:
    """`value`, an int of at least `least`, as a plain int.

    Raises ValueError: for anything else.
    """
    size = as_int(value)
    if size is None or size < least:
        raise ValueError(f"{name}: got {came(value)}; expected an int of at least {least}")
    return size


def check_flag(name: str, value: object) -> None:
    """`value` is True or False.

    Raises TypeError: for anything else, also for 0, 1 and NumPy's bools.
    """
    if not isinstance(value, bool):
        raise TypeError(f"{name}: got {came(value)}; expected True or False")


def check_choice(name: str, value: object, choices: Iterable[str]) -> None:
    """`value` is one of the names in `choices`.

    Raises ValueError: for anything else.
    """
    if not isinstance(value, str) or value not in choices:
        raise ValueError(f"{name}: got {came(value)}; expected one of {', '.join(map(repr, choices))}")


def check_probability(name: str, value: object) -> float:
    """0 <= value <= 1, as a plain number.

    Raises ValueError: for anything else.
    """
    number = as_finite(value)
    if number is None or not 0.0 <= number <= 1.0:
        raise ValueError(f"{name}: got {came(value)}; expected a probability between 0 and 1")
    return number


def check_scale(scale: object) -> float:
    """A finite number, as a float.

    Raises ValueError: for anything else.
    """
    number = as_finite(scale)
    if number is None:
        raise ValueError(f"scale: got {came(scale)}; expected a finite number, or None for 1/sqrt(width)")
    return float(number)


def check_softcap(softcap: object, *, in_float64: bool) -> float:
    """A finite number above 0, as a float, within 2^-100 and 2^100; 2^-900 and 2^900 for scores in float64.

    A larger cap bends no score below 2^-13 of these, and under a smaller one all scores are 0 but for rounding. So the
    nearest of these gives the same answers, and its products with gradients stay in range. The slope of the cap is
    the equation's too, but for scores that lie between the two caps.

    Raises ValueError: for anything else, and for a number that is 0 or inf as scores in float32; in float64, also for
    one whose inverse is inf.
    """
    number = as_finite(softcap)
    if number is None or not number > 0:
        raise ValueError(f"softcap: got {came(softcap)}; expected a finite number above 0, or None for no cap")
    most, power = (sys.float_info.max, 900) if in_float64 else (2.0**128 - 2.0**104, 100)
    least = 1.0 / most if in_float64 else 2.0**-150
    if not least < number <= most:
        raise ValueError(
            f"softcap: got {came(softcap)}; expected a number above {least:.6g} and up to {most:.6g}, as scores in "
            f"{'float64' if in_float64 else 'float32'} hold it, or None for no cap"
        )
    return min(max(float(number), 2.0**-power), 2.0**power)


def check_base(base: object) -> float:
    """A finite number above 1, from which frequencies descend, as a float.

    Raises ValueError: for anything else.
    """
    number = as_finite(base)
    if number is None or not number > 1.0:
        raise ValueError(f"base: got {came(base)}; expected a finite number above 1")
    return float(number)


def check_positive(name: str, value: object) -> int | float:
    """A finite number above 0, as a plain int or float.

    Raises ValueError: for anything else.
    """
    number = as_finite(value)
    if number is None or not number > 0:
        raise ValueError(f"{name}: got {came(value)}; expected a finite number above 0")
    return number


def check_buckets(num_buckets: object, max_distance: object, bidirectional: object) -> tuple[int, int]:
    """T5's buckets split evenly, between the directions and between exact and logarithmic: both sizes as plain ints.

    Raises TypeError: for a `bidirectional` that is not a bool; ValueError: for other sizes.
    """
    check_flag("bidirectional", bidirectional)
    parts, words = (4, "four") if bidirectional else (2, "two")
    buckets = check_size("num_buckets", num_buckets, least=parts)
    if buckets % parts:
        raise ValueError(f"num_buckets: got {buckets}; expected a multiple of {words}, to be split evenly")
    exact, distance = buckets // parts, as_int(max_distance)
    if distance is None or not exact < distance < FAR:
        raise ValueError(
            f"max_distance: got {came(max_distance)}; expected an int above {exact}, the distances that have a bucket "
            "of their own, and below 2**60"
        )
    return buckets, distance


def check_sides(max_distance: object) -> tuple[int, int]:
    """The distances (left, right), as plain ints, from one number for both or from a pair.

    Raises ValueError: for anything else.
    """
    pair = max_distance if isinstance(max_distance, tuple | list) else (max_distance, max_distance)
    sides = [side for side in map(as_int, pair) if side is not None and side >= 0]
    if len(pair) != 2 or len(sides) != 2:
        raise ValueError(
            f"max_distance: got {came(max_distance)}; expected an int of at least 0, or the pair (left, right)"
        )
    return sides[0], sides[1]


def check_slopes(slopes: object, num_heads: int) -> tuple[float, ...]:
    """One number above 0 per head, from a list, a tuple, an array or a tensor, as floats.

    Raises ValueError: for anything else.
    """
    tolist = getattr(slopes, "tolist", None)  # of arrays and tensors
    values = slopes if tolist is None else tolist()
    numbers = [as_finite(value) for value in values] if isinstance(values, list | tuple) else []
    good = [float(number) for number in numbers if number is not None and number > 0]
    if len(good) != len(numbers) or len(good) != num_heads:
        raise ValueError(
            f"slopes: got {slopes!r}; expected {num_heads} finite numbers above 0, one for each head; leave it out for "
            "those of the paper"
        )
    return tuple(good)
