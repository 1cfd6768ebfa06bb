"""Where queries and keys stand on other axes than the sequence: grids and parts of them, explicit positions, starts,
digits.

Every position is counted out here, by NumPy, beside what a call is given.
"""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

from relattn import GridPositions, grid

Choose = Callable[[Sequence[Any]], Any]


class Place(NamedTuple):
    """One side on one axis.

    given: what a call is given, arrays as NumPy; a 0-d array is a start given as a tensor. positions: every element's,
    [L] or [B, L], 0 for those that lead. prefix_tokens: how many, from the first, stand off the grid. furthest: the
    smallest and the largest position that tables must reach, where that is further than those of `positions`: of
    several digits, the sums of what each of them reaches.
    """

    given: Any
    positions: np.ndarray
    prefix_tokens: int = 0
    furthest: tuple[int, int] | None = None

    def extremes(self) -> tuple[int, int] | None:
        """The smallest and the largest position of what stands; None where nothing does."""
        standing = self.positions[..., self.prefix_tokens :]
        if standing.size == 0:
            return None
        return (int(standing.min()), int(standing.max())) if self.furthest is None else self.furthest


def on_a_grid(
    axes: tuple[str, ...], sizes: Sequence[int], prefix_tokens: int, first: int, length: int
) -> dict[str, Place]:
    """Some tokens of a grid, row by row, behind those that lead."""
    columns = np.stack(np.unravel_index(np.arange(np.prod(sizes)), sizes))
    columns = np.concatenate([np.zeros((len(sizes), prefix_tokens), dtype=np.int64), columns], axis=1)
    given = grid(*sizes, names=axes, prefix_tokens=prefix_tokens, first=first, length=length)
    part, before = columns[:, first : first + length], min(max(prefix_tokens - first, 0), length)
    return {axis: Place(given[axis], part[number], before) for number, axis in enumerate(axes)}


def explicit(rng: np.random.Generator, length: int, batch: int | None = None) -> Place:
    """A list for the whole batch, or one for each of its elements."""
    positions = rng.integers(-2, 4, length if batch is None else (batch, length))
    return Place(positions, positions)


def started(start: int, length: int, *, as_tensor: bool = False) -> Place:
    """A run."""
    return Place(np.array(start) if as_tensor else start, start + np.arange(length))


def of_digits(rng: np.random.Generator, length: int) -> Place:
    """Two digits of any steps and repeats, without a grid."""
    terms = tuple((int(rng.integers(-2, 3)), int(rng.integers(1, 4)), int(rng.integers(1, 4))) for _ in range(2))
    start, first = int(rng.integers(-2, 3)), int(rng.integers(0, 6))
    index = np.arange(length) + first
    digits = np.stack([step * (index // repeat % count) for step, repeat, count in terms])
    furthest = start + int(digits.min(1).sum()), start + int(digits.max(1).sum())
    return Place(GridPositions(terms, start=start, first=first), start + digits.sum(0), furthest=furthest)


def make_places(
    choose: Choose, rng: np.random.Generator, axes: tuple[str, ...], layout: str, batch: int, *, whole: bool
) -> dict[str, Any]:
    """The axes of a setting, and the lengths that go with them.

    layout: "grid", on which both sides hold parts of one grid; "class token", the same with tokens before it; "mixed",
    each side of each axis of a kind of its own. whole: both sides hold all of it, or are as long.
    """
    if layout == "mixed":
        lengths = choose(range(1, 5)), choose(range(1, 6))
        lengths = (lengths[0], lengths[0]) if whole else lengths
        sides = [{axis: _of_any_kind(choose, rng, length, batch) for axis in axes} for length in lengths]
    else:
        sizes = [choose((1, 2, 3) if number < 2 else (1, 2)) for number in range(len(axes))]
        prefix_tokens = choose((1, 1, 2)) if layout == "class token" else 0
        total = prefix_tokens + int(np.prod(sizes))
        spans = [(0, total) if whole else _part(choose, total) for _ in range(2)]
        lengths = spans[0][1], spans[1][1]
        sides = [on_a_grid(axes, sizes, prefix_tokens, *span) for span in spans]
    return {
        "query_length": lengths[0],
        "key_length": lengths[1],
        "axes": {axis: (sides[0][axis], sides[1][axis]) for axis in axes},
    }


def _part(choose: Choose, total: int) -> tuple[int, int]:
    """All of it half of the time; else a first element and a length of at least 1."""
    if choose((True, False)):
        return 0, total
    first = choose(range(total))
    return first, choose(range(1, total - first + 1))


def _of_any_kind(choose: Choose, rng: np.random.Generator, length: int, batch: int) -> Place:
    match choose(("list", "list per batch", "start", "tensor", "digits")):
        case "list":
            return explicit(rng, length)
        case "list per batch":
            return explicit(rng, length, batch)
        case "start":
            return started(choose(range(-2, 3)), length)
        case "tensor":
            return started(choose(range(-2, 3)), length, as_tensor=True)
    return of_digits(rng, length)
