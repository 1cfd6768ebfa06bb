"""Checks of plain values, and their wording: the argument, what came, what is expected."""

from __future__ import annotations

import math
from collections.abc import Iterable
from numbers import Integral
from typing import Any

# Of each rope_type: the keys that a scaling must have, and those that it may have, with what stands for them.
ROPE_SCALINGS: dict[str, tuple[tuple[str, ...], dict[str, Any]]] = {
    "linear": (("factor",), {}),
    "yarn": (
        ("factor", "original_max_position_embeddings"),
        {"beta_fast": 32.0, "beta_slow": 1.0, "attention_factor": None, "ramp": "pairs", "truncate": True},
    ),
    "llama3": (("factor", "low_freq_factor", "high_freq_factor", "original_max_position_embeddings"), {}),
}
# The rotations within the original length below which a pair is interpolated, and above which it is left alone.
ROPE_LIMITS = {"yarn": ("beta_slow", "beta_fast"), "llama3": ("low_freq_factor", "high_freq_factor")}
SAID_ELSEWHERE = {
    "rope_theta": "give base",
    "partial_rotary_factor": "give rotary_dim",
    "mscale": "give attention_factor",
    "mscale_all_dim": "give attention_factor",
}


_LONGEST_SHOWN = 2**64
"""Python refuses to print ints of more than 4300 digits, and no message gains by those of more than 20."""


def came(value: object) -> str:
    """How a message shows what came: its repr, or of an int beyond 64 bits how long it is."""
    if isinstance(value, int) and abs(value) >= _LONGEST_SHOWN:
        return f"an int of {value.bit_length()} bits"
    return repr(value)


def as_int(value: object) -> int | None:
    """An int, or an integer of NumPy as an int; None for anything else: bools, floats and tensors are none."""
    if isinstance(value, bool):
        return None
    if isinstance(value, int):
        return value
    return int(value) if isinstance(value, Integral) else None


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


def complete_scaling(scaling: object) -> dict[str, Any] | None:
    """A rotation's scaling with a number for every key that its rope_type may have, and for attention_factor.

    ValueError for another rope_type, a key that is missing or one too many, a number that is not above 0, limits in the
    wrong order. YaRN's attention_factor where None or absent: 0.1 ln(factor) + 1 (Peng et al. 2023, section 3.4).
    """
    if scaling is None:
        return None
    if not isinstance(scaling, dict) or "rope_type" not in scaling:
        older = isinstance(scaling, dict) and "type" in scaling
        way_out = "; name the 'type' of an older config 'rope_type'" if older else ""
        raise ValueError(
            f"scaling: got {scaling!r}; expected None, or a dict with 'rope_type' and what it takes{way_out}"
        )
    scaling = {name: value for name, value in scaling.items() if not (name == "attention_factor" and value is None)}
    check_choice("scaling['rope_type']", scaling["rope_type"], ROPE_SCALINGS)
    kind = scaling["rope_type"]
    needed, optional = ROPE_SCALINGS[kind]
    for name in needed:
        if name not in scaling:
            raise ValueError(f"scaling: got {scaling!r} without {name!r}, which rope_type {kind!r} needs")
    for name in scaling:
        if name != "rope_type" and name not in needed and name not in optional:
            way_out = f"leave it out, and {SAID_ELSEWHERE[name]}" if name in SAID_ELSEWHERE else "leave it out"
            raise ValueError(f"scaling: got {name!r}, a key that rope_type {kind!r} does not have; {way_out}")
    for name, value in scaling.items():
        if name == "ramp":
            check_choice("scaling['ramp']", value, ("pairs", "rotations"))
        elif name == "truncate":
            check_flag("scaling['truncate']", value)
        elif name != "rope_type":
            _check_positive(f"scaling[{name!r}]", value)
    if kind == "linear":
        return {**scaling, "attention_factor": 1.0}
    if scaling["factor"] < 1:
        raise ValueError(f"scaling['factor']: got {scaling['factor']!r}; rope_type {kind!r} expects at least 1")
    complete = {"attention_factor": 1.0, **optional, **scaling}
    if complete["attention_factor"] is None:
        complete["attention_factor"] = 0.1 * math.log(complete["factor"]) + 1.0
    slow, fast = ROPE_LIMITS[kind]
    if complete[slow] >= complete[fast]:
        raise ValueError(
            f"scaling[{slow!r}]: got {complete[slow]!r} with {fast}={complete[fast]!r}; expected a number below {fast}"
        )
    if "truncate" in scaling and complete["ramp"] == "rotations":
        raise ValueError("scaling['truncate']: came with ramp='rotations', which has no pairs to round; leave it out")
    return complete


def _check_positive(name: str, value: object) -> None:
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0.0 < value < math.inf:
        raise ValueError(f"{name}: got {value!r}; expected a finite number above 0")
