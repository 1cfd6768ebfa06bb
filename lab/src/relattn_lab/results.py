"""The results of a comparison as data: what a run measured, and what all runs come to."""

from __future__ import annotations

import statistics
from dataclasses import dataclass
from typing import Any

from relattn_lab.losses import Losses

FORMAT = 1
PACKAGES = ("torch", "transformers", "accelerate", "numpy", "music21")
"""The packages that the figures depend on."""


@dataclass(frozen=True)
class Summary:
    """Nats per token over seeds: their mean, and their sample standard deviation (None for a single seed)."""

    mean: float
    spread: float | None

    def shown(self, digits: int = 3) -> str:
        """mean ± spread, or the mean alone."""
        mean = f"{self.mean:.{digits}f}"
        return mean if self.spread is None else f"{mean} ± {self.spread:.{digits}f}"


def summarize(values: list[float]) -> Summary:
    """Mean and sample standard deviation of the seeds' figures."""
    return Summary(statistics.fmean(values), statistics.stdev(values) if len(values) > 1 else None)


def losses_record(losses: Losses) -> dict[str, Any]:
    """Losses as JSON: nats per token and tokens counted, in all and at each position (None where none was)."""
    by_position = [
        round(float(total) / int(count), 5) if count else None
        for total, count in zip(losses.total, losses.count, strict=True)
    ]
    return {"nats": losses.mean, "tokens": losses.tokens, "by_position": by_position, "count": losses.count.tolist()}
