"""Time, taken turn by turn with the floor, so that both see the same machine."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass

import torch

LEAST_TURNS, MOST_TURNS = 3, 200


@dataclass(frozen=True)
class Spread:
    """The median and the quartiles of a sample."""

    median: float
    lower: float
    upper: float

    @classmethod
    def of(cls, sample: list[float]) -> Spread:
        """Of at least two values."""
        lower, median, upper = statistics.quantiles(sample, n=4, method="inclusive")
        return cls(median, lower, upper)


@dataclass(frozen=True)
class Timing:
    """A candidate's seconds, and the ratio of each to the floor's in the same turn."""

    seconds: Spread
    ratio: Spread
    turns: int


def interleaved(floor: Callable[[], object], candidate: Callable[[], object], seconds: float, device: str) -> Timing:
    """Time both in turn for about `seconds`, 3 turns at least, after a warm-up that is not counted."""
    floor()
    candidate()
    _wait(device)
    floor_times, times = [], []
    end = time.perf_counter() + seconds
    while len(times) < LEAST_TURNS or (time.perf_counter() < end and len(times) < MOST_TURNS):
        floor_times.append(_timed(floor, device))
        times.append(_timed(candidate, device))
    ratios = [ours / theirs for ours, theirs in zip(times, floor_times, strict=True)]
    return Timing(Spread.of(times), Spread.of(ratios), len(times))


def _timed(call: Callable[[], object], device: str) -> float:
    return _timed_on_cuda(call) if device == "cuda" else _timed_by_clock(call)


def _timed_on_cuda(call: Callable[[], object]) -> float:
    """Seconds between two events of the stream: the device's own clock, without the launch of the first kernel."""
    start, stop = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    start.record()
    result = call()
    stop.record()
    stop.synchronize()
    del result
    return start.elapsed_time(stop) / 1000.0


def _timed_by_clock(call: Callable[[], object]) -> float:
    start = time.perf_counter()
    result = call()
    stop = time.perf_counter()
    del result  # freed outside the time
    return stop - start


def _wait(device: str) -> None:
    if device == "cuda":
        torch.cuda.synchronize()
