"""Time, measured pair by pair with the floor, so that both see the same state of the machine."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import torch

LEAST_PAIRS, MOST_PAIRS = 15, 2000
MOST_ROUNDS = 3
AHEAD, CYCLES = 0.01, 3e9
"""The seconds by which the host runs ahead of a CUDA device, and more cycles per second than a device has."""
UNSTEADY = 0.1
"""With a larger spread of the ratios the measurement is repeated, and the spread is shown."""


@dataclass(frozen=True)
class Spread:
    """The median and the quartiles of a sample."""

    median: float
    lower: float
    upper: float

    @classmethod
    def of(cls, sample: list[float]) -> Spread:
        """The spread of at least two values."""
        lower, median, upper = statistics.quantiles(sample, n=4, method="inclusive")
        return cls(median, lower, upper)

    @property
    def relative(self) -> float:
        """The distance of the quartiles over the median."""
        return (self.upper - self.lower) / self.median

    @property
    def is_steady(self) -> bool:
        """Whether the quartiles lie within 10 % of the median."""
        return self.relative <= UNSTEADY


@dataclass(frozen=True)
class Timing:
    """A candidate's seconds, and the ratio of each to the floor's in the same pair.

    processor_ratio: the same for the calling thread's processor time, without the time that it waited for other
        processes; None on CUDA, whose own clock is used. pairs: the pairs of the round that is kept. rounds: the
        measured rounds.
    """

    seconds: Spread
    ratio: Spread
    processor_ratio: Spread | None
    pairs: int
    rounds: int


def interleaved(floor: Callable[[], object], candidate: Callable[[], object], seconds: float, device: str) -> Timing:
    """Time both in turn for about `seconds`, at least 15 pairs, after a warm-up that is not counted.

    A round whose ratios spread over more than 10 % is repeated, twice at most. The steadiest round is kept.
    """
    timed = _on_cuda if device == "cuda" else _on_cpu
    floor()
    candidate()
    wait(device)
    rounds: list[list[_Pair]] = []
    while not rounds or (len(rounds) < MOST_ROUNDS and not Spread.of(_ratios(rounds[-1])).is_steady):
        rounds.append(_round(lambda: timed(floor), lambda: timed(candidate), seconds))
    kept = min(rounds, key=lambda pairs: Spread.of(_ratios(pairs)).relative)
    processor = None
    if all(theirs.processor for theirs, _ in kept):  # CUDA's clock, or a coarse one, does not show it
        processor = Spread.of([ours.processor / theirs.processor for theirs, ours in kept])
    clock = Spread.of([ours.clock for _, ours in kept])
    return Timing(clock, Spread.of(_ratios(kept)), processor, len(kept), len(rounds))


class _Time(NamedTuple):
    """Seconds by the clock, and of the calling thread's processor time."""

    clock: float
    processor: float


_Pair = tuple[_Time, _Time]
"""The floor's time and the candidate's."""


def _round(floor: Callable[[], _Time], candidate: Callable[[], _Time], seconds: float) -> list[_Pair]:
    pairs: list[_Pair] = []
    end = time.perf_counter() + seconds
    while len(pairs) < LEAST_PAIRS or (time.perf_counter() < end and len(pairs) < MOST_PAIRS):
        pairs.append((floor(), candidate()))
    return pairs


def _ratios(pairs: list[_Pair]) -> list[float]:
    return [ours.clock / theirs.clock for theirs, ours in pairs]


def _on_cuda(call: Callable[[], object]) -> _Time:
    """The device's own seconds. It is kept busy before: it does not wait for a host that needs AHEAD at most."""
    start, stop = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    keep_busy()
    start.record()
    result = call()
    stop.record()
    stop.synchronize()
    del result
    return _Time(start.elapsed_time(stop) / 1000.0, 0.0)


def keep_busy() -> None:
    """A CUDA device has other work for AHEAD seconds."""
    torch.cuda._sleep(int(AHEAD * CYCLES))


def _on_cpu(call: Callable[[], object]) -> _Time:
    processor, start = time.thread_time(), time.perf_counter()  # in this order: the first call is slower
    result = call()
    found = _Time(time.perf_counter() - start, time.thread_time() - processor)
    del result  # freed outside the time
    return found


def wait(device: str) -> None:
    """Until a CUDA device has done all its work."""
    if device == "cuda":
        torch.cuda.synchronize()
