"""A launch's arguments as one row of leaves: what its bundles hold, and the bundles in these, at any depth.

A bundle is a named tuple. There are some twenty in a launch, with some hundred members. To ask each member for its type
would take longer than all else on the host. So a row is opened by a function whose text is written from the types in
the row, and from the type hints of the bundles, when the first row of such types comes.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable
from types import NoneType, UnionType
from typing import Any, Union, get_args, get_origin, get_type_hints

NOTHING = (), ()


def opened(row: tuple) -> tuple[tuple, tuple]:
    """The form of a row of arguments of any types, and its leaves; a tuple without bundles is one of them.

    In rows of equal forms the same leaves stand in the same places: the form tells of the types in the row, of which
    bundles are there, and of the lengths of tuples with bundles in them. It also tells of Nones in the row, which are
    no leaves. What a bundle holds must be of the type that its hint says.
    """
    return _function_for(*map(type, row))(row) if row else NOTHING


@functools.cache
def _function_for(*kinds: type) -> Callable[[tuple], tuple[tuple, tuple]]:
    """`opened` for rows of these types."""
    text, space = _Text(), {"kinds": kinds, "opened": opened, "NOTHING": NOTHING}
    names = text.new_names(len(kinds))
    text.lines.append(f"{_row(names)} = row")
    for name, kind in zip(names, kinds, strict=True):
        text.open_member(name, kind)
    text.lines.append(f"return (kinds, {_row(text.form)}), {_joined([*text.rows, _row(text.leaves)])}")
    exec("def function(row):\n    " + "\n    ".join(text.lines), space)
    return space["function"]  # pyright: ignore[reportReturnType]


class _Text:
    """The text of a function that opens a row: its lines so far, and the expressions for what it returns. leaves: of
    single ones; rows: of tuples of leaves.
    """

    def __init__(self) -> None:
        self.lines: list[str] = []
        self.form: list[str] = []
        self.leaves: list[str] = []
        self.rows: list[str] = []
        self.numbers = itertools.count()

    def new_names(self, count: int) -> list[str]:
        """No two members have the same, in whichever bundles they are."""
        return [f"member_{next(self.numbers)}" for _ in range(count)]

    def open_member(self, name: str, kind: type) -> None:
        """One of the row, whose type is in the form."""
        if is_bundle(kind):
            self._open_bundle(name, kind)
        elif issubclass(kind, tuple):
            self._open_as_row(name)
        elif kind is not NoneType:
            self.leaves.append(name)

    def _open_as_row(self, row: str, when: str = "") -> None:
        """A tuple whose length or types are not known yet. when: the condition without which nothing is there."""
        form, leaves = self.new_names(2)
        self.lines.append(f"{form}, {leaves} = opened({row})" + (f" if {when} else NOTHING" if when else ""))
        self.form.append(form)
        self.rows.append(leaves)

    def _open_bundle(self, name: str, kind: type) -> None:
        """A bundle that is there."""
        hints = get_type_hints(kind)
        if not any(map(has_bundle, hints.values())) and not all(map(may_be_none, hints.values())):
            self.rows.append(name)
            return
        names = self.new_names(len(hints))
        self.lines.append(f"{_row(names)} = {name}")
        absent = []
        for member, hint in zip(names, hints.values(), strict=True):
            if may_be_none(hint) and not has_bundle(hint):
                absent.append(member)
            else:
                self._open_hinted(member, hint)
        if absent:
            self.form.append(f"{' is '.join(absent)} is None")
            self.rows.append(f"(() if {self.form[-1]} else {_row(absent)})")

    def _open_hinted(self, name: str, hint: Any) -> None:
        """A member of a bundle."""
        if hint == tuple[None, ...]:  # its length is all there is to it
            self.form.append(name)
        elif not has_bundle(hint):
            self.leaves.append(name)
        elif is_bundle(hint):
            self._open_bundle(name, hint)
        elif get_origin(hint) is tuple:
            self._open_as_row(name)
        elif all(kind is NoneType or _is_flat(kind) for kind in alternatives(hint)):
            self.form.append(f"{name}.__class__")
            self.rows.append(f"({name} or ())")
        else:
            self._open_as_row(f"({name},)", when=f"{name} is not None")


def alternatives(hint: Any) -> tuple:
    """The types of which a hint allows one."""
    return get_args(hint) if get_origin(hint) in (Union, UnionType) else (hint,)


def may_be_none(hint: Any) -> bool:
    """Whether it allows None."""
    return NoneType in alternatives(hint)


def is_bundle(hint: Any) -> bool:
    """Whether it is a type of named tuples."""
    return hasattr(hint, "_fields")


def has_bundle(hint: Any) -> bool:
    """Whether it names such a type."""
    return is_bundle(hint) or any(map(has_bundle, get_args(hint)))


def _is_flat(kind: Any) -> bool:
    """Whether it is a type of bundles with no bundle in them."""
    return is_bundle(kind) and not any(map(has_bundle, get_type_hints(kind).values()))


def _row(members: list[str]) -> str:
    """The text of a tuple."""
    return f"({''.join(f'{member}, ' for member in members)})"


def _joined(rows: list[str]) -> str:
    """The text of the sum of tuples. By halves: so no member is copied as often as there are tuples."""
    if len(rows) == 1:
        return rows[0]
    half = len(rows) // 2
    return f"({_joined(rows[:half])} + {_joined(rows[half:])})"
