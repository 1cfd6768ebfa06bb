"""The checks of positions, and their wording: what a caller gives for each side becomes the `Places` of a call."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from relattn.checks.tensors import INTEGER_DTYPES, check_layout, has_shape, refuse_device, shape
from relattn.checks.values import FAR, as_int, came
from relattn.errors import ShapeError
from relattn.positions.certainty import statically_true
from relattn.positions.contiguous import ContiguousPositions
from relattn.positions.explicit import ExplicitPositions
from relattn.positions.grid import GridPositions
from relattn.positions.places import Places, positions_on, run_as_list
from relattn.positions.position import Position
from relattn.positions.positions import SEQUENCE, Positions, Window

OnSequence = ContiguousPositions | ExplicitPositions


def position_of(name: str, given: object, batch: Sequence[int], length: int, device: torch.device) -> OnSequence:
    """The sum type of a caller's `PositionLike`: a start (int or 0-d integer tensor), or [length] or [*batch, length].

    A ContiguousPositions or ExplicitPositions means the same. Digits are written down as a list, because limits on the
    sequence compare positions.

    Raises TypeError: for another type or dtype; ShapeError: for another shape; ValueError: for another device or a
    start beyond 2**60, where offsets could leave int64.
    """
    if isinstance(given, (ContiguousPositions, ExplicitPositions)):
        given = given.start if isinstance(given, ContiguousPositions) else given.positions
    if isinstance(given, GridPositions):
        if given.prefix_tokens:
            raise ValueError(
                f"{name}: got grid positions with prefix_tokens={given.prefix_tokens} for the sequence, where every "
                "token has a place; expected none, or these positions on an axis of their own"
            )
        given = given.expand(_checked_count(name, given, length), device)
    if isinstance(given, Tensor):
        return _position_of_tensor(name, given, batch, length, device)
    start = given if isinstance(given, torch.SymInt) else as_int(given)
    if start is None:
        raise TypeError(
            f"{name}: got {came(given)}; expected an int, or an integer tensor with a start or with every position"
        )
    if statically_true(start <= -FAR) or statically_true(start >= FAR):
        raise ValueError(f"{name}: got {came(start)}; expected an int between -2**60 and 2**60")
    return ContiguousPositions(start)  # pyright: ignore[reportArgumentType]  (an open length of a graph is as good as an int)


def places_of(
    query_position: object,
    key_position: object,
    batch: Sequence[int],
    lengths: tuple[int, int],
    device: torch.device,
    within: tuple[int | None, int | None],
) -> Places:
    """Where queries and keys stand on every axis that the caller gave; `within`: the limits on the sequence.

    Raises ValueError: for axes that only one side has; and, naming the axis, what `position_of` raises.
    """
    start, other = query_position, key_position
    if type(start) is int and type(other) is int and -FAR < start < FAR and -FAR < other < FAR:  # nearly every call
        sides = ContiguousPositions(start), ContiguousPositions(other)
        return Places(Positions(*sides, *lengths, device, *within))
    query, query_beside = side_of("query_position", query_position, batch, lengths[0], device)
    key, key_beside = side_of("key_position", key_position, batch, lengths[1], device)
    sequence = Positions(query, key, *lengths, device, *within)
    return places_beside(sequence, query_beside, key_beside)


def side_of(
    name: str, given: object, batch: Sequence[int], length: int, device: torch.device
) -> tuple[OnSequence, dict[str, Position]]:
    """Where one side stands on the sequence (from 0 by default), and on each other axis.

    Raises what `position_of` raises, naming the axis.
    """
    on_sequence, others = sequence_and_others(given, start=0)
    position = position_of(name, on_sequence, batch, length, device)
    return position, positions_beside(name, others, batch, length, device) if others else {}


def sequence_and_others(given: object, start: int | None) -> tuple[object, dict[Any, object]]:
    """The caller's positions on the sequence (`start` if none is given) and on each other axis."""
    if not isinstance(given, Mapping):
        return given, {}
    by_axis = dict(given)
    return by_axis.pop(SEQUENCE, start), by_axis


def places_beside(
    sequence: Positions, query_by_axis: Mapping[str, Position], key_by_axis: Mapping[str, Position]
) -> Places:
    """The places of a call from its two parsed sides.

    Raises ValueError: for axes that only one side has.
    """
    if not query_by_axis and not key_by_axis:
        return Places(sequence)
    sides = {"key_position": (query_by_axis, key_by_axis), "query_position": (key_by_axis, query_by_axis)}
    for name, (here, there) in sides.items():
        missing = [axis for axis in here if axis not in there]
        if missing:
            raise ValueError(
                f"{name}: got no axis {missing[0]!r}, which the other side has; expected both sides on the same axes; "
                "give it to both, or to neither"
            )
    sizes = sequence.query_length, sequence.key_length, sequence.device
    others = {axis: positions_on(axis, place, key_by_axis[axis], *sizes) for axis, place in query_by_axis.items()}
    return Places(sequence, others)


def positions_beside(
    name: str, by_axis: Mapping[Any, object], batch: Sequence[int], length: int, device: torch.device
) -> dict[str, Position]:
    """Where one side stands on each axis beside the sequence. A start that is a tensor becomes a list of positions."""
    parsed = {}
    for axis, given in by_axis.items():
        if not isinstance(axis, str) or not axis:
            raise TypeError(f"{name}: got {axis!r} for an axis; expected its name, such as 'x'")
        of_axis = f"{name}[{axis!r}]"
        if isinstance(given, GridPositions):
            _checked_count(of_axis, given, length)
            parsed[axis] = given
        else:
            parsed[axis] = run_as_list(position_of(of_axis, given, batch, length, device), length, device)
    return parsed


def _checked_count(name: str, digits: GridPositions, length: int) -> int:
    """The length of the side. Digits with a `count` must have this length."""
    if digits.count is not None and digits.count != length:
        raise ShapeError(
            f"{name}: got a grid of {digits.count} tokens beside {length}; expected as many tokens as the grid has, "
            "those that lead among them; say relattn.grid(..., first=, length=) for a part"
        )
    return length


def _position_of_tensor(
    name: str, given: Tensor, batch: Sequence[int], length: int, device: torch.device
) -> OnSequence:
    check_layout(name, given)
    if given.dtype not in INTEGER_DTYPES:
        raise TypeError(f"{name}: got dtype {given.dtype}; expected integer positions; convert with .long()")
    is_start = given.dim() == 0
    if given.device != device and not (is_start and given.device.type == "cpu"):
        refuse_device(name, given, device, "the query's")
    positions = given.to(torch.int64)  # a narrower dtype would overflow in arithmetic
    if is_start:
        return ContiguousPositions(positions)
    if not has_shape(given, (length,), (*batch, length)):
        raise ShapeError(f"{name}: got shape {shape(given)}; expected a start, [{length}] or {[*batch, length]}")
    return ExplicitPositions(positions if given.dim() <= 2 else positions.reshape(math.prod(batch), length))


def check_window(window: Window | None) -> Window | None:
    """(left, right), each an int of at least 0, or None for no limit; returned as plain ints.

    Raises ValueError: for anything else.
    """
    if window is None:
        return None
    sides = [as_int(side) for side in window] if isinstance(window, (tuple, list)) else []
    if len(sides) != 2 or not all(_is_reach(side, given) for side, given in zip(sides, window, strict=True)):
        raise ValueError(
            f"window: got {window!r}; expected (left, right), each an int of at least 0 and below 2**60, or None for "
            "no limit on that side"
        )
    return sides[0], sides[1]


def _is_reach(side: int | None, given: object) -> bool:
    return given is None if side is None else side >= 0 and not statically_true(side >= FAR)
