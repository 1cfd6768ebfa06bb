"""The scalings of rotations for texts longer than those of the training: their names, checks and formulas.

The formulas take float64 NumPy arrays or tensors, and import neither library. So torch and Keras turn by the same
numbers.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from relattn.checks.values import check_choice, check_flag, check_positive

# For each rope_type: the keys that a scaling must have, and those that it may have, with their defaults.
ROPE_SCALINGS: dict[str, tuple[tuple[str, ...], dict[str, Any]]] = {
    "linear": (("factor",), {}),
    "dynamic": (("factor", "original_max_position_embeddings"), {}),
    "yarn": (
        ("factor", "original_max_position_embeddings"),
        {"beta_fast": 32.0, "beta_slow": 1.0, "attention_factor": None, "ramp": "pairs", "truncate": True},
    ),
    "longrope": (
        ("short_factor", "long_factor", "original_max_position_embeddings"),
        {"factor": None, "attention_factor": None},
    ),
    "llama3": (("factor", "low_freq_factor", "high_freq_factor", "original_max_position_embeddings"), {}),
}
BY_LENGTH = ("dynamic", "longrope")
"""The types whose frequencies depend on the length of the call."""

# Two limits, in rotations within the original length: below the first a pair is interpolated, above the second it is
# left alone.
_LIMITS = {"yarn": ("beta_slow", "beta_fast"), "llama3": ("low_freq_factor", "high_freq_factor")}
_LISTS = ("short_factor", "long_factor")
_SAID_ELSEWHERE = {
    "rope_theta": "give base",
    "partial_rotary_factor": "give rotary_dim",
    "mscale": "give attention_factor",
    "mscale_all_dim": "give attention_factor",
}


def complete_scaling(scaling: object, pairs: int) -> dict[str, Any] | None:
    """A rotation's scaling with a number for every key that its rope_type may have, and for attention_factor.

    pairs: the number of pairs of features that turn. Each has its own factor where rope_type is "longrope".
    attention_factor, where None or absent: for "yarn" 0.1 ln(factor) + 1 (Peng et al. 2023, section 3.4), for
    "longrope" sqrt(1 + ln(factor) / ln(original_max_position_embeddings)) (Ding et al. 2024's code), for all others 1.

    Raises ValueError: for another rope_type, a missing key, an unknown key, a number that is not above 0, limits in the
    wrong order, or a list of another length; TypeError: for a "truncate" that is not a bool.
    """
    if scaling is None:
        return None
    if not isinstance(scaling, dict) or "rope_type" not in scaling:
        older = isinstance(scaling, dict) and "type" in scaling
        way_out = "; name the 'type' of an older config 'rope_type'" if older else ""
        raise ValueError(
            f"scaling: got {scaling!r}; expected None, or a dict with 'rope_type' and what it takes{way_out}"
        )
    check_choice("scaling['rope_type']", scaling["rope_type"], ROPE_SCALINGS)
    kind = scaling["rope_type"]
    decided = ("attention_factor", "factor") if kind == "longrope" else ("attention_factor",)  # by formulas, where None
    given = {name: value for name, value in scaling.items() if value is not None or name not in decided}
    _check_keys(given)
    given = {name: _checked(name, value, pairs) for name, value in given.items()}
    if kind != "linear" and given.get("factor", 1.0) < 1:
        raise ValueError(f"scaling['factor']: got {given['factor']!r}; expected at least 1 for rope_type {kind!r}")
    complete = {"attention_factor": 1.0, **ROPE_SCALINGS[kind][1], **given}
    if complete["attention_factor"] is None:
        complete["attention_factor"] = _temperature(complete)
    if kind in _LIMITS:
        slow, fast = _LIMITS[kind]
        if complete[slow] >= complete[fast]:
            raise ValueError(
                f"scaling[{slow!r}]: got {complete[slow]!r} with {fast}={complete[fast]!r}; expected a number below "
                f"{fast}"
            )
    if "truncate" in given and complete["ramp"] == "rotations":
        raise ValueError("scaling['truncate']: came with ramp='rotations', which has no pairs to round; leave it out")
    return complete


def given_scaling(scaling: dict[str, Any] | None, rule: dict[str, Any] | None) -> dict[str, Any] | None:
    """A scaling with the keys that it came with, and with the plain numbers of `complete_scaling`."""
    if scaling is None or rule is None:
        return None
    return {name: None if value is None else rule[name] for name, value in scaling.items()}


def _check_keys(scaling: dict[str, Any]) -> None:
    kind = scaling["rope_type"]
    needed, optional = ROPE_SCALINGS[kind]
    for name in needed:
        if name not in scaling:
            elsewhere = kind == "dynamic" and name == "original_max_position_embeddings"
            where = "; it is the config's max_position_embeddings" if elsewhere else ""
            raise ValueError(f"scaling: got {scaling!r}; expected {name!r} in it for rope_type {kind!r}{where}")
    for name in scaling:
        if name != "rope_type" and name not in needed and name not in optional:
            way_out = f"leave it out, and {_SAID_ELSEWHERE[name]}" if name in _SAID_ELSEWHERE else "leave it out"
            raise ValueError(f"scaling: got {name!r}; expected only keys that rope_type {kind!r} has; {way_out}")
    if kind == "longrope" and "factor" not in scaling and "attention_factor" not in scaling:
        raise ValueError(
            f"scaling: got {scaling!r}; expected 'factor' or 'attention_factor' in it for rope_type 'longrope'; "
            "factor is the config's max_position_embeddings / original_max_position_embeddings"
        )


def _checked(name: str, value: Any, pairs: int) -> Any:
    if name == "ramp":
        check_choice("scaling['ramp']", value, ("pairs", "rotations"))
    if name == "truncate":
        check_flag("scaling['truncate']", value)
    if name in ("rope_type", "ramp", "truncate"):
        return value
    if name not in _LISTS:
        return check_positive(f"scaling[{name!r}]", value)
    if not isinstance(value, list | tuple) or len(value) != pairs:
        raise ValueError(
            f"scaling[{name!r}]: got {value!r}; expected a list of {pairs} numbers, one for each pair of features"
        )
    return [check_positive(f"scaling[{name!r}][{index}]", number) for index, number in enumerate(value)]


def _temperature(scaling: dict[str, Any]) -> float:
    factor = scaling["factor"]
    if scaling["rope_type"] == "yarn":
        return 0.1 * math.log(factor) + 1.0
    length = scaling["original_max_position_embeddings"]
    if length <= 1:
        raise ValueError(
            f"scaling['original_max_position_embeddings']: got {length!r}; expected a number above 1 for rope_type "
            "'longrope'; or give attention_factor"
        )
    return math.sqrt(1.0 + math.log(factor) / math.log(length))


def scaled_frequencies(
    theta: Any, pairs: Any, base: float, rule: dict[str, Any], length: Any, array: Callable[[list[float]], Any]
) -> Any:
    """The angle by which each pair turns a position; `relattn.offsets.rope_frequencies` has the formulas.

    theta: base^(-2 t / width) of the pairs t = 0, 1, ..., and pairs: those t, both float64.
    rule: as `complete_scaling` returns it. length: of the call, but at least
        its original_max_position_embeddings, a float64 scalar; read by BY_LENGTH only.
    array: makes a float64 array of the kind of theta from numbers.
    """
    kind = rule["rope_type"]
    if kind == "linear":
        return theta / rule["factor"]
    original = rule["original_max_position_embeddings"]
    if kind == "dynamic":
        growth = rule["factor"] * length / original - (rule["factor"] - 1.0)
        return theta * growth ** (-pairs / max(theta.shape[0] - 1, 1))  # a single pair turns by 1 for every base
    if kind == "longrope":
        short, long = (array(rule[name]) for name in _LISTS)
        return theta / (short * (length <= original) + long * (length > original))
    low, high = (rule[name] for name in _LIMITS[kind])
    if rule.get("ramp") == "pairs":
        gamma = 1.0 - _ramp(pairs, *_pairs_between(low, high, 2 * theta.shape[0], base, original, rule["truncate"]))
    else:
        gamma = _ramp(original * theta / (2.0 * math.pi), low, high)
    return gamma * theta + (1.0 - gamma) * (theta / rule["factor"])


def _ramp(values: Any, first: float, last: float) -> Any:
    return ((values - first) / (last - first)).clip(0.0, 1.0)


def _pairs_between(
    low: float, high: float, width: int, base: float, length: float, truncate: bool
) -> tuple[float, float]:
    """The t at which r_t = high, and the t at which r_t = low, as YaRN's published code bounds them."""
    first, last = (
        width * math.log(length / (rotations * 2.0 * math.pi)) / (2.0 * math.log(base)) for rotations in (high, low)
    )
    if truncate:
        first, last = math.floor(first), math.ceil(last)
    first, last = max(first, 0.0), min(last, width - 1.0)
    return first, max(last, first + 0.001)  # a step, where no pair lies between the bounds
