"""The time of the host for a call on a CUDA device."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable

from relattn.cli.bench.timing import LEAST_PAIRS, keep_busy, wait


def host_seconds(call: Callable[[], object]) -> float:
    """The host's seconds for a call, median of 15, until the call returns; a CUDA device is busy with other work."""
    found = []
    for _ in range(LEAST_PAIRS):
        wait("cuda")
        keep_busy()
        start = time.perf_counter()
        result = call()
        found.append(time.perf_counter() - start)
        del result
    return statistics.median(found)
