"""The longest sequence whose training step fits a memory budget: measured where possible, else by the fitted law."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from measure.memory import Memory, OverMemoryError
from measure.power_law import PowerLaw, fit

GRAIN = 64
CLOSE = 1.05
"""A measured answer fits, and 5 % more does not."""
FITTED = 3
"""The law goes through the longest lengths, where the quadratic or linear part has won."""


@dataclass(frozen=True)
class Longest:
    """length: the longest that fits, a multiple of 64 (or one of the grid's lengths).

    how: "measured": it was run, and 5 % more (or 64) did not fit. "modelled": a step that long cannot be run here. The
        length follows from the law of the memory at the lengths `basis`, which is at least linear. "at least": only one
        length was measured, so there is no law.
    """

    length: int
    how: str
    basis: tuple[int, ...]


def longest(
    measure: Callable[[int], Memory], known: Mapping[int, Memory], budget: int, patience: float
) -> Longest | None:
    """Look for the longest length whose `total` is at most `budget` bytes.

    measure: one step at a length; raises OverMemoryError where it does not fit the budget, another RuntimeError where
        it cannot be run here. known: earlier measurements, of at least one length. patience: seconds that one step may
    take. None where not even the shortest length fits.
    """
    found = dict(known)
    low = max((length for length, memory in found.items() if memory.total <= budget), default=None)
    if low is None:
        return None
    high = min((length for length, memory in found.items() if memory.total > budget), default=math.inf)
    while True:
        memory_law, time_law = _memory_law(found), _law(found, "seconds")
        guess = _next_guess(low, high, memory_law, budget)
        if guess >= high:
            return Longest(low, "measured", tuple(sorted(found)))
        if time_law is not None and time_law.value(guess) > patience:
            return _modelled(memory_law, low, high, budget, found)
        try:
            memory = measure(guess)
        except OverMemoryError:
            high = guess
            continue
        except RuntimeError:
            return _modelled(memory_law, low, high, budget, found)
        found[guess] = memory
        if memory.total <= budget:
            low = guess
        else:
            high = guess


def _next_guess(low: int, high: float, law: PowerLaw | None, budget: int) -> int:
    """The length to try: by the law, at most twice the last; the middle where that lies outside low..high."""
    guess = 2.0 * low if law is None else min(2.0 * low, law.length(budget))
    if guess >= high:
        guess = math.sqrt(low * high)
    return max(_rounded(guess), _rounded(low * CLOSE), _rounded(low) + GRAIN)


def _rounded(length: float) -> int:
    return int(length) // GRAIN * GRAIN


def _memory_law(found: Mapping[int, Memory]) -> PowerLaw | None:
    """The law through the longest lengths. If it is less than linear: linear from the longest, because inputs are
    linear.

    Buffers of a fixed size make a few lengths look flatter.
    """
    law, longest = _law(found, "total"), max(found)
    if law is None or law.exponent >= 1.0:
        return law
    return PowerLaw(found[longest].total / longest, 1.0)


def _law(found: Mapping[int, Memory], quantity: str) -> PowerLaw | None:
    return fit({length: getattr(found[length], quantity) for length in sorted(found)[-FITTED:]})


def _modelled(law: PowerLaw | None, low: int, high: float, budget: int, found: Mapping[int, Memory]) -> Longest:
    if law is None:
        return Longest(low, "at least", (low,))
    return Longest(max(low, _rounded(min(law.length(budget), high))), "modelled", tuple(sorted(found)[-FITTED:]))
