"""GridPositions: positions that count like the digits of a number; grid: the rows, columns and frames of a grid."""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass, replace
from math import prod

import torch
from jaxtyping import Int64
from torch import Tensor

from relattn.checks.values import as_int, came, check_size

GRID_AXES = ("t", "y", "x")
"""The names of a grid's axes, from the right."""


@dataclass(frozen=True)
class GridPositions:
    """p(i) = start + sum_n step_n * (((i + first) // repeat_n) % length_n): the rows, columns and frames of a grid.

    No list is written for them. A part of them is the same object with another `first`.

    terms: (step, repeat, length) of each digit, ints. The column of a grid's element is ((1, 1, width),), its row
        ((1, width, height),).
    start: the position at which every digit is 0. first: the number of the first element.
    prefix_tokens: the number of elements before element `first`. off_grid: where all of them stand; no offset counts
        there.
    count: the number of elements, prefix tokens included; None for any number.

    Raises ValueError: for terms of another form, and for numbers that are not ints or too small.
    """

    terms: tuple[tuple[int, int, int], ...]
    _: KW_ONLY
    start: int = 0
    first: int = 0
    prefix_tokens: int = 0
    off_grid: int = 0
    count: int | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "terms", _checked_terms(self.terms))
        for name in ("start", "off_grid"):
            number = as_int(getattr(self, name))
            if number is None:
                raise ValueError(f"GridPositions {name}: got {came(getattr(self, name))}; expected an int")
            object.__setattr__(self, name, number)
        for name in ("first", "prefix_tokens"):
            object.__setattr__(self, name, check_size(f"GridPositions {name}", getattr(self, name), least=0))

    def expand(self, length: int, device: torch.device) -> Int64[Tensor, "L"]:
        """The position of each of `length` elements."""
        index = torch.arange(length, device=device) - self.prefix_tokens
        position = torch.full_like(index, self.start)
        for step, repeat, count in self.terms:
            position += step * (((index + self.first) // repeat) % count)
        return position.masked_fill_(index < 0, self.off_grid) if self.prefix_tokens else position

    def part(self, elements: slice, batch: int | None = None) -> GridPositions:
        """The position of some of the elements, the same in every batch element."""
        behind = elements.start - self.prefix_tokens
        prefix_tokens = max(-behind, 0)
        count = None if self.count is None else elements.stop - elements.start
        return replace(self, first=self.first + max(behind, 0), prefix_tokens=prefix_tokens, count=count)

    def extent(self, length: int) -> tuple[int, int]:
        """The smallest and the largest position of `length` elements, without prefix tokens.

        All values of a digit count if it starts again on the way. So the two are at least as far apart as the
        positions.
        """
        first, last = self.first, self.first + max(length - self.prefix_tokens, 1) - 1
        lowest = highest = self.start
        for step, repeat, count in self.terms:
            low, high = first // repeat % count, last // repeat % count
            if last // repeat - first // repeat >= count or low > high:
                low, high = 0, count - 1
            lowest += min(step * low, step * high)
            highest += max(step * low, step * high)
        return lowest, highest


def grid(
    *sizes: int, names: tuple[str, ...] | None = None, prefix_tokens: int = 0, first: int = 0, length: int | None = None
) -> dict[str, GridPositions]:
    """Where the elements of a grid stand, row by row: element i of height x width has y = i // width, x = i % width.

    For `query_position` and `key_position` of `relative_attention`. The sequence stays beside it and starts at 0.

    sizes: the size of each axis, the last one fastest: grid(height, width), grid(frames, height, width).
    names: the names of the axes; the last of "t", "y", "x" by default.
    prefix_tokens: the number of tokens before the grid that stand on none of its axes (a class token). Encodings on
        these axes add nothing to a pair with one of these tokens.
    first, length: only the tokens first .. first + length - 1, prefix tokens counted; to the end by default.

    Raises ValueError: for sizes that are not ints of at least 1, for names that do not fit them, and for a part that
    does not lie in the grid.

    >>> grid(2, 3)["y"].expand(6, torch.device("cpu")).tolist()
    [0, 0, 0, 1, 1, 1]
    """
    checked = [check_size("grid sizes", size) for size in sizes]
    names = _checked_names(checked, names)
    prefix_tokens = check_size("grid prefix_tokens", prefix_tokens, least=0)
    first = check_size("grid first", first, least=0)
    whole = prefix_tokens + prod(checked)
    length = None if length is None else check_size("grid length", length, least=0)
    if first + (length or 0) > whole:
        raise ValueError(
            f"grid first, length: got {first} and {length}; expected a part of the {whole} tokens of "
            f"{' x '.join(map(str, checked))}" + (f" and {prefix_tokens} before them" if prefix_tokens else "")
        )
    repeats = [prod(checked[n + 1 :]) for n in range(len(checked))]
    found = {
        name: GridPositions(((1, repeat, size),), prefix_tokens=prefix_tokens, count=whole)
        for name, repeat, size in zip(names, repeats, checked, strict=True)
    }
    if first == 0 and length is None:
        return found
    part = slice(first, whole if length is None else first + length)
    return {name: digits.part(part) for name, digits in found.items()}


def _checked_names(sizes: list[int], names: object) -> tuple[str, ...]:
    """One name per axis, all different, and none of them the sequence's."""
    if names is None:
        if not 1 <= len(sizes) <= len(GRID_AXES):
            raise ValueError(
                f"grid sizes: got {len(sizes)} of them; expected one to {len(GRID_AXES)}, or names for the axes"
            )
        return GRID_AXES[-len(sizes) :]
    given = tuple(names) if isinstance(names, (tuple, list)) else ()
    good = all(isinstance(name, str) and name and name != "sequence" for name in given)
    if not good or len(set(given)) != len(sizes) or len(given) != len(sizes):
        raise ValueError(
            f"grid names: got {names!r} for {len(sizes)} sizes; expected as many different names, none of them "
            "'sequence', which is the order of the tokens"
        )
    return given


def _checked_terms(terms: object) -> tuple[tuple[int, int, int], ...]:
    """(step, repeat, length) of each digit as ints: any step, a repeat and a length of at least 1."""
    checked = []
    for term in terms if isinstance(terms, (tuple, list)) else (None,):
        step, repeat, length = (
            map(as_int, term) if isinstance(term, (tuple, list)) and len(term) == 3 else (None, None, None)
        )
        if step is None or repeat is None or length is None or repeat < 1 or length < 1:
            raise ValueError(
                f"GridPositions terms: got {terms!r}; expected (step, repeat, length) of each digit, three ints, the "
                "last two of at least 1"
            )
        checked.append((step, repeat, length))
    return tuple(checked)
