"""Checks of plain values: the argument, what came, what is expected."""

from __future__ import annotations

from collections.abc import Iterable


def check_size(name: str, value: object) -> None:
    """`value` is an int of at least 1.

    Raises ValueError: for anything else.
    """
    if not isinstance(value, int) or isinstance(value, bool) or value < 1:
        raise ValueError(f"{name}: got {value!r}; expected an int of at least 1")


def check_flag(name: str, value: object) -> None:
    """`value` is True or False.

    Raises TypeError: for anything else.
    """
    if not isinstance(value, bool):
        raise TypeError(f"{name}: got {value!r}; expected True or False")


def check_choice(name: str, value: object, choices: Iterable[str]) -> None:
    """`value` is one of the names in `choices`.

    Raises ValueError: for anything else.
    """
    if not isinstance(value, str) or value not in choices:
        raise ValueError(f"{name}: got {value!r}; expected one of {', '.join(map(repr, choices))}")
